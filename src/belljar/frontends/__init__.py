"""The servers and commands that callers use. They translate: requests into Executions, Outcomes into answers."""
