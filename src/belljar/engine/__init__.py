"""What we do with an execution: admit it, give it its turn, run it, answer. No Linux and no HTTP in here."""
