print("ünïcödé ✓ 漢字 🎈 \N{GREEK SMALL LETTER ALPHA}")
print("combining e\u0301", "rtl \u202eabc", "zero\u200bwidth")
