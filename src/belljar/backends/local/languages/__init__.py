"""Programs that are not Python: compile steps, the compile cache, commands started ahead."""
