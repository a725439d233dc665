raise BaseExceptionGroup("several", [SystemExit(3), ValueError("x")])
