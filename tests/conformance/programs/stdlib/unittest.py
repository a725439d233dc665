import unittest
class Case(unittest.TestCase):
    def test_good(self):
        self.assertEqual(1, 1)
    def test_skipped(self):
        self.skipTest("not now")
if __name__ == "__main__":
    unittest.main()
