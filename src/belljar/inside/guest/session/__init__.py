"""A guest that stays: an interpreter that runs one cell after another."""
