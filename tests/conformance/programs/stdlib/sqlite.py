import sqlite3
connection = sqlite3.connect("data.db")
with connection:
    connection.execute("create table t (a integer primary key, b text)")
    connection.executemany("insert into t (b) values (?)", [("x",), ("y",)])
print(connection.execute("select * from t order by a desc").fetchall())
connection.close()
memory = sqlite3.connect(":memory:", check_same_thread=False)
print(memory.execute("select sqlite_version() is not null, json('[1]')").fetchall())
try:
    memory.execute("bad sql")
except sqlite3.OperationalError as error:
    print(error)
