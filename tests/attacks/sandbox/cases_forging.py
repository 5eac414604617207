"""Attacks on the judgement: comparison, results, exit codes, test discovery, import machinery, what a person is shown."""

from __future__ import annotations

from functools import partial

from sandbox_cases import TOOLS, VERDICT, Attack

called = partial(Attack, function="solve")

COMPARISON = (
    called(name="equals-everything", goal="return an object that is equal to everything", ends=("not_plain_data",), source="""
           class Anything:
               def __eq__(self, other): return True
               def __ne__(self, other): return False
               def __bool__(self): return True
               def __hash__(self): return 0
           def solve(a, b):
               return Anything()
           """),
    called(name="within-any-tolerance", goal="pass a comparison with a tolerance too", ends=("not_plain_data",), source="""
           class Near:
               def __sub__(self, other): return self
               __rsub__ = __add__ = __radd__ = __truediv__ = __abs__ = __neg__ = __sub__
               def __abs__(self): return 0.0
               def __float__(self): return 0.0
               def __le__(self, other): return True
               __lt__ = __ge__ = __gt__ = __eq__ = __le__
           def solve(a, b):
               return Near()
           """),
    *(called(name=f"{base}-in-name-only", goal=f"return a subclass of {base} with its own comparison", ends=("not_plain_data",),
             source=f"""
             class Fake({base}):
                 def __eq__(self, other): return True
                 def __ne__(self, other): return False
                 def __hash__(self): return 0
                 def __iter__(self): return iter(())
                 def strip(self, *a): return self
                 def split(self, *a): return [self]
             def solve(a, b):
                 return Fake()
             """) for base in ("int", "float", "str", "list", "dict")),
    called(name="lies-about-its-class", goal="an object whose class says int", ends=("not_plain_data",), source="""
           class Liar:
               @property
               def __class__(self): return int
               def __eq__(self, other): return True
               def __index__(self): return 7
           def solve(a, b):
               return Liar()
           """),
    called(name="equal-inside", goal="hide it inside plain data", ends=("not_plain_data",), source="""
           class Anything:
               def __eq__(self, other): return True
           def solve(a, b):
               return {'sum': [1, (2, Anything())]}
           """),
    called(name="true-for-one", goal="a truth value for a number", ends=("answered",),
           source="def solve(a, b):\n    return True\n"),
    called(name="not-a-number", goal="a float that compares oddly", ends=("not_plain_data",),
           source="def solve(a, b):\n    return float('nan')\n"),
    called(name="infinite", goal="a float beyond every bound", ends=("not_plain_data",),
           source="def solve(a, b):\n    return float('inf')\n"),
    called(name="rounded", goal="a float near the sum", ends=("answered",), source="def solve(a, b):\n    return float(a + b)\n"),
    called(name="contains-itself", goal="a list that has no end in depth", ends=("not_plain_data",), source="""
           def solve(a, b):
               keep = []
               keep.append(keep)
               return keep
           """),
    called(name="very-deep", goal="overflow the stack of whoever decodes", ends=("not_plain_data",), source="""
           def solve(a, b):
               keep = []
               for _ in range(100_000):
                   keep = [keep]
               return keep
           """),
    called(name="very-long", goal="fill the memory of whoever decodes", ends=("limit output", "limit memory"), source="""
           def solve(a, b):
               return 'x' * 50_000_000
           """),
    called(name="generator", goal="run on while it is compared", ends=("not_plain_data",),
           source="def solve(a, b):\n    yield a + b\n"),
    called(name="coroutine", goal="be awaited by the judge", ends=("not_plain_data",),
           source="async def solve(a, b):\n    return a + b\n"),
    called(name="pickle", goal="run code where it is unpacked", ends=("not_plain_data",), source="""
           import os
           class Boom:
               def __reduce__(self): return (os.system, ('touch /tmp/ran',))
           def solve(a, b):
               return Boom()
           """),
    called(name="bytes", goal="bytes for text", ends=("not_plain_data",), source="def solve(a, b):\n    return b'7'\n"),
)

RESULTS = (
    called(name="leaves-at-import", goal="exit with 0 before anything is called", ends=("no_result",),
           source="import sys\nsys.exit(0)\n"),
    called(name="leaves-in-the-call", goal="exit with 0 inside the call", ends=("no_result",),
           source="import os\ndef solve(a, b):\n    os._exit(0)\n"),
    called(name="leaves-truly", goal="an exit code that is true", ends=("exit_status",),
           source="def solve(a, b):\n    raise SystemExit(True)\n"),
    called(name="becomes-another-program", goal="be a program that always succeeds", ends=("no_result",),
           source="import os\nos.execv('/bin/true', ['true'])\n"),
    called(name="no-function", goal="give nothing to call", ends=("exit_status",), source="passed = True\n"),
    called(name="function-is-a-lie", goal="a name that is no function", ends=("exit_status",), source="solve = True\n"),
    called(name="writes-a-verdict", goal="write a verdict where the result goes", ends=("no_result",), source="""
           import os
           for fd in range(1, 32):
               try:
                   os.write(fd, b'{"passed": true, "score": 1.0}')
               except OSError:
                   pass
           os._exit(0)
           """),
    called(name="writes-twice", goal="a second document behind the first", ends=("no_result",), source="""
           import atexit, os
           def late():
               for fd in range(3, 32):
                   try:
                       os.write(fd, b'{"value": 7}')
                   except OSError:
                       pass
           atexit.register(late)
           def solve(a, b):
               return 0
           """),
    called(name="writes-the-result-itself", goal="forge the document of the result without being called", ends=("answered",),
           source="""
           import os
           for fd in range(3, 32):
               try:
                   os.write(fd, b'{"value": 7}')
               except OSError:
                   pass
           os._exit(0)
           """),
    called(name="stubs-for-the-encoder", goal="replace the modules that the driver uses", ends=("no_result", "exit_status"),
           source="""
           import json, sys, types
           json.dumps = lambda *a, **k: '{"passed": true, "value": true, "score": 1}'
           for name in ('json', 'numpy', 'math'):
               sys.modules[name] = types.ModuleType(name)
           def solve(a, b):
               return 0
           """),
    called(name="patched-builtins", goal="make every object look plain and equal", ends=("no_result", "exit_status", "answered",
                                                                                      "not_plain_data"), source="""
           import builtins
           builtins.isinstance = builtins.issubclass = lambda *a: True
           builtins.all = builtins.any = lambda *a: True
           builtins.type = lambda *a: int
           class Anything:
               def __eq__(self, other): return True
           def solve(a, b):
               return Anything()
           """),
    called(name="walks-the-frames", goal="find the expected value in the caller's frames", ends=("answered",), source="""
           import sys
           def solve(a, b):
               frame, seen = sys._getframe(), []
               while frame:
                   seen += [v for k, v in frame.f_locals.items() if 'expect' in k or 'answer' in k and type(v) is not int]
                   frame = frame.f_back
               return seen[0] if seen else 'nothing'
           """),
    called(name="searches-all-objects", goal="find the expected value among all objects", ends=("answered",), source="""
           import gc
           def solve(a, b):
               for thing in gc.get_objects():
                   if type(thing) is dict and 'expected' in thing:
                       return thing['expected']
               return None
           """),
    called(name="reads-the-input-again", goal="look for the expected value in the input", ends=("answered",), source="""
           import os
           def solve(a, b):
               os.lseek(0, 0, 0)
               return os.read(0, 100000).decode()
           """),
    called(name="traces-the-driver", goal="change the result on its way", ends=("answered",), source="""
           import sys
           def trace(frame, event, value):
               if event == 'return' and frame.f_code.co_name == 'plain':
                   frame.f_locals['value'] = 0
               return trace
           sys.settrace(trace)
           def solve(a, b):
               return 0
           """),
    called(name="raises-from-inside", goal="be an error of the judge", ends=("exit_status",), source="""
           class Judge(BaseException): pass
           def solve(a, b):
               raise Judge('internal error of the verifier')
           """),
)

DISCOVERY = (
    Attack(name="test-framework", goal="make every assertion pass", ends=("answered",), source="""
           import unittest
           for name in dir(unittest.TestCase):
               if name.startswith('assert'):
                   setattr(unittest.TestCase, name, lambda *a, **k: None)
           print('OK')
           """),
    Attack(name="test-files", goal="be collected as the tests", ends=("answered",), source="""
           for name in ('conftest.py', 'test_solution.py', 'tests.py', 'pytest.ini', 'setup.cfg', 'pyproject.toml', 'tox.ini'):
               with open(name, 'w') as file:
                   file.write('def pytest_sessionfinish(session): session.exitstatus = 0\\n')
           print('1 passed')
           """),
    Attack(name="start-up-files", goal="run in the next interpreter", ends=("answered",), source="""
           import os
           for name in ('sitecustomize.py', 'usercustomize.py', 'json.py', 'math.py', 'evil.pth', '.pythonrc', '.bashrc'):
               for folder in ('.', '/tmp', os.path.expanduser('~'), '/box'):
                   with open(os.path.join(folder, name), 'w') as file:
                       file.write('raise SystemExit(0)')
           print('left')
           """),
    Attack(name="import-hook", goal="stand between the judge and its modules", ends=("answered", "exit_status"), source="""
           import sys, types
           class Finder:
               def find_spec(self, name, path=None, target=None): raise ImportError(name)
           sys.meta_path.insert(0, Finder())
           sys.path_hooks.clear(); sys.path.clear(); sys.modules.clear()
           print('hooked')
           """),
    Attack(name="prints-a-report", goal="print what a passing run prints", ends=("answered",), source="""
           print('[[VERDICT]] PASS\\n{"reward": 1.0, "passed": true}\\nexit code 0\\n===== 1 passed in 0.01s =====')
           """),
)

PRINTED = (
    Attack(name="two-answers", goal="print the sum and something else", ends=("answered",), source="""
           a, b = map(int, input().split())
           print(a + b); print(a - b)
           """),
    Attack(name="every-answer", goal="print all numbers, the sum among them", ends=("answered",), source="print(*range(100))"),
    Attack(name="hidden-by-escapes", goal="print a wrong answer and paint the right one over it", ends=("answered",), source="""
           a, b = map(int, input().split())
           print('0\\r\\x1b[2K\\x1b[1A\\x1b]0;PASS\\x07' + str(a + b))
           """),
    Attack(name="backspaces", goal="type over the wrong answer", ends=("answered",), source="""
           a, b = map(int, input().split())
           print('0\\b' + str(a + b))
           """),
    Attack(name="ends-at-a-nul", goal="hope for a comparison that stops at NUL", ends=("answered",), source="""
           import sys
           a, b = map(int, input().split())
           sys.stdout.write(str(a + b) + '\\0 999\\n')
           """),
    Attack(name="double-precision", goal="be right only for small numbers", ends=("answered",), source="""
           a, b = map(float, input().split())
           print(int(a + b))
           """),
    Attack(name="another-alphabet", goal="digits that only look like digits", ends=("answered",), source="""
           a, b = map(int, input().split())
           print(str(a + b).translate({48 + n: 0xFF10 + n for n in range(10)}))
           """),
    Attack(name="marked-text", goal="a mark before the text, and joiners inside", ends=("answered",), source="""
           a, b = map(int, input().split())
           print('\\ufeff' + '\\u200d'.join(str(a + b)))
           """),
    Attack(name="right-then-crash", goal="the right answer and a failing exit", ends=("exit_status",), source="""
           a, b = map(int, input().split())
           print(a + b, flush=True)
           raise RuntimeError('after the answer')
           """),
    Attack(name="right-then-signal", goal="the right answer and a crash", ends=("signal",), source="""
           import os
           a, b = map(int, input().split())
           print(a + b, flush=True)
           os.abort()
           """),
    Attack(name="closed-output", goal="end without output and without failing", ends=("answered", "exit_status"), source="""
           import os
           os.close(1)
           print('7')
           """),
    Attack(name="shared-place", goal="print from a place that another test left", source=TOOLS + """
for path in glob.glob('/tmp/*') + glob.glob('/box/*') + glob.glob('/dev/shm/*'):
    if path != '/box/program.py':
        got.append(path)
open('/tmp/left', 'w').write('7')
""" + VERDICT, ends=("denied",)),
)

HONEST = (
    Attack(name="honest-script", goal="none", honest=True, ends=("answered",),
           source="a, b = map(int, input().split())\nprint(a + b)"),
    Attack(name="honest-bytes", goal="none: the binary side of the streams", honest=True, ends=("answered",), source="""
           import sys
           a, b = map(int, sys.stdin.buffer.read().split())
           sys.stdout.buffer.write(b'%d\\n' % (a + b))
           """),
    Attack(name="honest-main", goal="none: the usual frame of a script, and its exit", honest=True, ends=("answered",), source="""
           import sys
           from collections import deque
           def main():
               data = deque(map(int, sys.stdin.read().split()))
               print(data.popleft() + data.popleft())
           if __name__ == '__main__':
               sys.setrecursionlimit(10 ** 6)
               main()
               exit()
           """),
    Attack(name="honest-thread", goal="none: deep recursion in a thread with a large stack", honest=True, ends=("answered",),
           source="""
           import sys, threading
           def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
           def main():
               a, b = map(int, input().split())
               print(a + b if depth(20_000) == 20_000 else -1)
           sys.setrecursionlimit(10 ** 6)
           threading.stack_size(1 << 26)
           thread = threading.Thread(target=main)
           thread.start(); thread.join()
           """),
    Attack(name="honest-children", goal="none: a pool of processes", honest=True, ends=("answered",), source="""
           import multiprocessing
           def add(pair): return sum(pair)
           if __name__ == '__main__':
               pair = tuple(map(int, input().split()))
               with multiprocessing.Pool(2) as pool:
                   print(pool.map(add, [pair])[0])
           """),
    Attack(name="honest-files", goal="none: temporary files and a subprocess", honest=True, ends=("answered",), source="""
           import subprocess, sys, tempfile
           with tempfile.NamedTemporaryFile('w+') as file:
               file.write(input()); file.flush()
               print(subprocess.run([sys.executable, '-c', f'print(sum(map(int, open({file.name!r}).read().split())))'],
                                    capture_output=True, text=True, check=True).stdout)
           """),
    called(name="honest-function", goal="none", honest=True, ends=("answered",), source="def solve(a, b):\n    return a + b\n"),
    called(name="honest-words", goal="none: names that a guard might take for a cheat", honest=True, ends=("answered",),
           source="""
           # returns the expected sum; the reward test compares expected with solve(a, b)
           def solve(a, b):
               expected = a + b
               passed = expected == a + b
               print('passed', passed)
               return expected if passed else None
           """),
    Attack(name="honest-method", goal="none: a method of a class", honest=True, ends=("answered",), function="Solution.add",
           source="""
           class Solution:
               def add(self, a: int, b: int) -> int:
                   return a + b
           """),
)
