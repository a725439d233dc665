"""Sessions: guests that run one cell after another and keep their state."""
