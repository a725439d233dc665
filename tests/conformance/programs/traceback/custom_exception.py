class ApplicationError(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code
    def __str__(self):
        return f"application error {self.code}"
class Outer:
    class Inner(ApplicationError):
        pass
raise Outer.Inner(42)
