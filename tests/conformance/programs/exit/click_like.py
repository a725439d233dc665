import sys
class Exit(RuntimeError):
    def __init__(self, code=0):
        self.exit_code = code
class Command:
    def main(self, standalone=True):
        try:
            try:
                raise Exit(3)
            except Exit as error:
                if standalone:
                    sys.exit(error.exit_code)
        except SystemExit as error:
            print("leaving with", error.code)
            raise
Command().main()
