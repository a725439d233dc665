import decimal, fractions, statistics
print(decimal.getcontext())
with decimal.localcontext() as context:
    context.prec = 50
    print(decimal.Decimal(2).sqrt())
print(fractions.Fraction(3, 9), statistics.fmean([1, 2, 4]), statistics.stdev([1, 2, 4]))
