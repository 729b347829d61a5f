"""A Unity Catalog server, open-source or hosted by Databricks, as the catalog of a mount."""
