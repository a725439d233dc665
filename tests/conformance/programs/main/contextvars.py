import contextvars
variable = contextvars.ContextVar("variable", default="unset")
print(variable.get(), len(contextvars.copy_context()))
token = variable.set("set")
print(variable.get(), len(contextvars.copy_context()))
variable.reset(token)
print(variable.get())
