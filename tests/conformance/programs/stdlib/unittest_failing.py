import unittest
class Case(unittest.TestCase):
    def test_bad(self):
        self.assertEqual([1, 2], [1, 3])
    def test_error(self):
        raise ValueError("broken")
    def test_sub(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertLess(number, 2)
unittest.main(verbosity=2)
