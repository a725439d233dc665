exec("def inner():\n    raise ValueError('in exec')\ninner()")
