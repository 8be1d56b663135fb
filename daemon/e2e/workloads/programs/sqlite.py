"""A database with a transaction that stays open: locks are held, pages are in memory."""
import sqlite3
import sys

db = sqlite3.connect("/w/db", isolation_level=None)
db.execute("PRAGMA journal_mode=%s" % sys.argv[1])
db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT)")
db.execute("BEGIN IMMEDIATE")
for line in sys.stdin:
    word = line.strip()
    if word == "close":
        db.execute("COMMIT")
        db.close()
        print("<closed>", flush=True)
        continue
    if word == "commit":
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
    elif word != "?":
        db.executemany("INSERT INTO t (word) VALUES (?)", [(word,)] * 10)
    n = db.execute("SELECT count(*), group_concat(DISTINCT word) FROM t").fetchone()
    print("<%d %s %s>" % (n[0], n[1], db.in_transaction), flush=True)
