"""Tests by layer: unit, contract, fs, model, mount."""
