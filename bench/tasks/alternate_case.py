def alternate_case(text):
    return "".join(letter.upper() if place % 2 == 0 else letter.lower() for place, letter in enumerate(text))


assert alternate_case("belljar") == "BeLlJaR"
assert alternate_case("A") == "A"
assert alternate_case("") == ""
