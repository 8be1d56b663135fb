"""Threads and subprocesses. Each holds what it was told; a line of input is told to all."""
import subprocess
import sys
import threading

CHILD = """
import sys
told = []
for line in sys.stdin:
    told.append(line.strip())
    print(",".join(told), flush=True)
"""


class Worker(threading.Thread):
    def __init__(self, name):
        super().__init__(name=name, daemon=True)
        self.told, self.word, self.turn = [], None, threading.Condition()
        self.start()

    def run(self):
        while True:
            with self.turn:
                self.turn.wait_for(lambda: self.word is not None)
                self.told.append(self.word)
                self.word = None
                self.turn.notify_all()

    def tell(self, word):
        with self.turn:
            self.word = word
            self.turn.notify_all()
            self.turn.wait_for(lambda: self.word is None)


threads = [Worker(f"t{i}") for i in range(8)]
children = [
    subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(4)
]
answers = [""] * len(children)
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word != "?":
        for t in threads:
            t.tell(word)
        for i, c in enumerate(children):
            c.stdin.write(word + "\n")
            c.stdin.flush()
            answers[i] = c.stdout.readline().strip()
    held = "|".join([",".join(t.told) for t in threads] + answers + [str(c.poll()) for c in children])
    print(f"<{held}>", flush=True)
