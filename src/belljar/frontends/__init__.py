"""Who asks. A front end only translates: its own words into an Execution, an Outcome into its own words."""
