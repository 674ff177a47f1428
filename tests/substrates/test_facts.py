from lib.substrates.facts import City, load_cities, load_countries


def test_countries_are_distinct_complete_and_ordered_by_people() -> None:
    countries = load_countries()
    by_name = {country.name: country for country in countries}
    assert len(by_name) == len(countries) > 200
    assert [country.population for country in countries] == sorted((c.population for c in countries), reverse=True)
    assert all(isinstance(c.capital, str) and c.capital and c.continent for c in countries)
    poland = by_name["Poland"]
    assert (poland.code, poland.capital, poland.continent, poland.demonym) == ("PL", "Warsaw", "Europe", "Polish")
    large = load_countries(min_population=300_000)
    assert large == [country for country in countries if country.population >= 300_000]


def test_cities_name_countries_that_are_known() -> None:
    cities = load_cities(min_population=1_000_000)
    assert all(isinstance(city, City) and city.population >= 1_000_000 for city in cities)
    assert [city.population for city in cities] == sorted((c.population for c in cities), reverse=True)
    assert len(cities) > 300
    assert {city.country_code for city in cities} <= {country.code for country in load_countries()}
