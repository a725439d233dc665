class Done(SystemExit):
    @property
    def code(self):
        return 8
raise Done()
