import bisect, collections, heapq
heap = [5, 1, 4]
heapq.heapify(heap)
print(heapq.heappop(heap), bisect.bisect([1, 2, 3], 2), collections.Counter("banana").most_common(2))
print(collections.OrderedDict(a=1), collections.deque([1, 2], maxlen=1), collections.ChainMap({"a": 1}, {"b": 2})["b"])
