"""Reading clean files: prefetch and windows (see `prefetch`), memory and fetches (`pool`)."""
