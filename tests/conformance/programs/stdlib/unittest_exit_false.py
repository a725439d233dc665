import unittest
class Case(unittest.TestCase):
    def test_bad(self):
        self.fail("on purpose")
unittest.main(exit=False)
print("goes on")
