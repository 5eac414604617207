"""What people see while a run goes on and after it: a local web application, and the same pages as a folder of files."""
