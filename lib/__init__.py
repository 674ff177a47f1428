"""The shared library of Papers that run: bench, batch, substrates and one method module a paper."""
