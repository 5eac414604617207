"""The program is a module as well."""

import subprocess
import sys


def test_python_m_rollbook_is_rollbook():
    done = subprocess.run([sys.executable, "-m", "rollbook", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("Usage: rollbook "), done
