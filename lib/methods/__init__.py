"""One module a paper: its method, importable on the reader's own model or data."""
