from unittest import mock
import os
with mock.patch("os.getcwd", return_value="/mocked"), mock.patch.dict(os.environ, {"MOCK": "1"}):
    print(os.getcwd(), os.environ["MOCK"])
with mock.patch("sys.exit") as exit:
    import sys
    sys.exit(3)
print(exit.call_args, "MOCK" in os.environ)
with mock.patch("builtins.input", return_value="typed"):
    print(input())
