"""Host functions that programs can call: where tools come from, and how calls are checked and answered."""
