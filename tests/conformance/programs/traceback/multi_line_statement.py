result = max(
    1,
    2,
    int(
        "not a number"
    ),
)
