"""Which catalogs, schemas and volumes there are, and where each volume lies.

`interface` says what a mount asks; `volumes_file` answers from a `volumes.toml`, `unity` from a
Unity Catalog server. `sources` reads the names of places. Nothing here asks a store.
"""
