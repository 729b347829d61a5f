"""ucfuse: an object-store bucket at /Volumes, for machine learning first."""

__all__ = ["__version__"]

__version__ = "0.1.0"
