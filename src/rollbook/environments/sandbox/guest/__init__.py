"""What runs inside the sandbox: standard library only, laid into it file by file, hence the relative imports."""
