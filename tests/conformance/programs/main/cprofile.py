import cProfile, io, pstats
profile = cProfile.Profile()
profile.enable()
sum(x * x for x in range(100))
profile.disable()
stream = io.StringIO()
pstats.Stats(profile, stream=stream).print_stats()
print("function calls" in stream.getvalue())
