error = ValueError("bad")
error.add_note("first note")
error.add_note("second note\nwith two lines")
raise error
