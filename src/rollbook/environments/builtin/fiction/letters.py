"""A world of authors, books, libraries and loans."""

from __future__ import annotations

import random

from rollbook.environments.builtin.fiction.tables import Column, Names, Rule, Sentence, Table, Template, Theme

NOW = 1460
SUBJECTS = ("tides", "bees", "clocks", "bridges", "dreams", "stars", "mosses", "law", "bread", "maps")
NOUNS = ("Treatise", "Garden", "Mirror", "Book", "History", "Song", "Journey")


def rows(drawn: random.Random, size: int) -> tuple[Table, ...]:
    """Tables with `size` rows in all."""
    names = Names(drawn)
    cities = [(index, names.word(2), drawn.randint(20, 900) * 100 + index) for index in range(1, 11)]
    authors = []
    for index in range(1, 31):
        born = drawn.randint(1370, 1425)
        died = born + drawn.randint(34, 85)
        authors.append((index, names.person(), born, died if died < NOW else None, drawn.choice(cities)[0]))
    presses = [(index, names.of("{} Press", "Press of {}", "{} Brothers"), drawn.choice(cities)[0], drawn.randint(1380, 1405))
               for index in range(1, 9)]
    books = []
    for index in range(1, 76):
        author = drawn.choice(authors)
        start = max(author[2] + 20, 1405)
        year = drawn.randint(start, max(start, min(author[3] or NOW, NOW)))
        title = f"{drawn.choice(NOUNS)} of {names.word(2)}"
        books.append((index, title, author[0], drawn.choice(presses)[0], year, drawn.choice(SUBJECTS),
                      drawn.randint(40, 720) + index))
    books = [book for book in books if book[4] <= (authors[book[2] - 1][3] or NOW)]
    libraries = [(index, names.of("{} Library", "Library of {}", "{} Reading Room"), drawn.choice(cities)[0],
                  drawn.randint(1390, 1430))
                 for index in range(1, 13)]
    readers = [(index, names.person(), drawn.randint(1385, 1440), drawn.choice(cities)[0]) for index in range(1, 41)]
    fixed = len(cities) + len(authors) + len(presses) + len(books) + len(libraries) + len(readers)
    loans = []
    for index in range(1, size - fixed + 1):
        book, library, reader = drawn.choice(books), drawn.choice(libraries), drawn.choice(readers)
        first = max(book[4], library[3], reader[2] + 8)
        loans.append((index, book[0], library[0], reader[0], drawn.randint(min(first, NOW), NOW) if first <= NOW else NOW,
                      drawn.randint(1, 60)))
    return _tables(cities, authors, presses, books, libraries, readers, loans)


def _tables(*data: list) -> tuple[Table, ...]:      # type: ignore[type-arg]
    key, name, city = Column(name="id"), Column(name="name", kind="text"), Column(name="city_id", refers="cities.id")
    columns = {
        "cities": (key, name, Column(name="inhabitants")),
        "authors": (key, name, Column(name="born"), Column(name="died"), city),
        "presses": (key, name, city, Column(name="founded")),
        "books": (key, Column(name="title", kind="text"), Column(name="author_id", refers="authors.id"),
                  Column(name="press_id", refers="presses.id"), Column(name="year"), Column(name="subject", kind="text"),
                  Column(name="pages")),
        "libraries": (key, name, city, Column(name="opened")),
        "readers": (key, name, Column(name="born"), city),
        "loans": (key, Column(name="book_id", refers="books.id"), Column(name="library_id", refers="libraries.id"),
                  Column(name="reader_id", refers="readers.id"), Column(name="year"), Column(name="days")),
    }
    return tuple(Table(name=table, columns=columns[table], rows=tuple(map(tuple, part)))
                 for table, part in zip(columns, data, strict=True))


RULES = (
    Rule(says="an author is at least 20 and alive when a book appears",
         sql=f"SELECT b.id FROM books b JOIN authors a ON a.id = b.author_id WHERE b.year < a.born + 20 OR b.year > "
             f"COALESCE(a.died, {NOW})"),
    Rule(says="a press exists when it prints", sql="SELECT b.id FROM books b JOIN presses p ON p.id = b.press_id WHERE b.year < "
                                                   "p.founded"),
    Rule(says="a book is lent after it appeared", sql="SELECT l.id FROM loans l JOIN books b ON b.id = l.book_id WHERE l.year < "
                                                      "b.year"),
    Rule(says="a library lends when it is open",
         sql="SELECT l.id FROM loans l JOIN libraries i ON i.id = l.library_id WHERE l.year < i.opened"),
    Rule(says="a reader is at least eight",
         sql="SELECT l.id FROM loans l JOIN readers r ON r.id = l.reader_id WHERE l.year < r.born + 8"),
    Rule(says="nothing happens in the future", sql=f"SELECT id FROM loans WHERE year > {NOW} UNION ALL SELECT id FROM books "
                                                   f"WHERE year > {NOW}"),
)
TEMPLATES = (
    Template(name="author of a book", text="Who wrote the {title}?", choose="SELECT title FROM books",
             sql="SELECT a.name FROM books b JOIN authors a ON a.id = b.author_id WHERE b.title = :title", kind="text", hops=1),
    Template(name="city of a book's press", text="In which city was the {title} printed?", choose="SELECT title FROM books",
             sql="SELECT c.name FROM books b JOIN presses p ON p.id = b.press_id JOIN cities c ON c.id = p.city_id WHERE "
                 "b.title = :title",
             kind="text", hops=2),
    Template(name="age of the author", text="How many years after the author's birth did the {title} appear?",
             choose="SELECT title FROM books",
             sql="SELECT b.year - a.born FROM books b JOIN authors a ON a.id = b.author_id WHERE b.title = :title",
             kind="number", hops=2),
    Template(name="pages of an author", text="How many pages have all books by {author} together?",
             choose="SELECT name AS author FROM authors WHERE id IN (SELECT author_id FROM books)",
             sql="SELECT SUM(b.pages) FROM books b JOIN authors a ON a.id = b.author_id WHERE a.name = :author", kind="number",
             hops=2),
    Template(name="days of a reader", text="For how many days in all did {reader} borrow books?",
             choose="SELECT name AS reader FROM readers WHERE id IN (SELECT reader_id FROM loans)",
             sql="SELECT SUM(l.days) FROM loans l JOIN readers r ON r.id = l.reader_id WHERE r.name = :reader", kind="number",
             hops=2),
    Template(name="longest book of a press", text="Which book printed by {press} has most pages?",
             choose="SELECT name AS press FROM presses",
             sql="SELECT b.title, b.pages FROM books b JOIN presses p ON p.id = b.press_id WHERE p.name = :press ORDER BY "
                 "b.pages DESC",
             kind="best", hops=2),
    Template(name="subject in a city", text="How many loans of books about {subject} were there in libraries of {city}?",
             choose="SELECT DISTINCT b.subject AS subject, c.name AS city FROM loans l JOIN books b ON b.id = l.book_id "
                    "JOIN libraries i ON i.id = l.library_id JOIN cities c ON c.id = i.city_id",
             sql="SELECT COUNT(*) FROM loans l JOIN books b ON b.id = l.book_id JOIN libraries i ON i.id = l.library_id "
                 "JOIN cities c ON c.id = i.city_id WHERE b.subject = :subject AND c.name = :city", kind="number", hops=4),
    Template(name="most read author of a library", text="Books of which author were lent most often by {library}?",
             choose="SELECT name AS library FROM libraries",
             sql="SELECT a.name, COUNT(*) AS loans FROM loans l JOIN books b ON b.id = l.book_id JOIN authors a ON a.id = "
                 "b.author_id "
                 "JOIN libraries i ON i.id = l.library_id WHERE i.name = :library GROUP BY a.id ORDER BY loans DESC",
             kind="best", hops=4),
    Template(name="readers of a book", text="Which readers borrowed the {title}?",
             choose="SELECT b.title AS title FROM books b JOIN loans l ON l.book_id = b.id GROUP BY b.id "
                    "HAVING COUNT(DISTINCT l.reader_id) BETWEEN 2 AND 5",
             sql="SELECT DISTINCT r.name FROM loans l JOIN books b ON b.id = l.book_id JOIN readers r ON r.id = l.reader_id "
                 "WHERE b.title = :title", kind="list", hops=3),
)
SENTENCES = (
    Sentence(sql="SELECT name AS title, inhabitants FROM cities", text="{title} is a city of {inhabitants} inhabitants."),
    Sentence(sql="SELECT a.name AS title, a.born, c.name AS city FROM authors a JOIN cities c ON c.id = a.city_id",
             text="{title} is an author who was born in {born} and lived in {city}."),
    Sentence(sql="SELECT name AS title, died FROM authors WHERE died IS NOT NULL", text="{title} died in {died}."),
    Sentence(sql="SELECT p.name AS title, c.name AS city, p.founded FROM presses p JOIN cities c ON c.id = p.city_id",
             text="{title} prints in {city} since {founded}."),
    Sentence(sql="SELECT b.title AS title, a.name AS author, p.name AS press, b.year, b.subject, b.pages FROM books b JOIN "
                 "authors a "
                 "ON a.id = b.author_id JOIN presses p ON p.id = b.press_id",
             text="The {title} by {author} is a book about {subject} of {pages} pages, printed by {press} in {year}."),
    Sentence(sql="SELECT i.name AS title, c.name AS city, i.opened FROM libraries i JOIN cities c ON c.id = i.city_id",
             text="{title} stands in {city} and was opened in {opened}."),
    Sentence(sql="SELECT r.name AS title, r.born, c.name AS city FROM readers r JOIN cities c ON c.id = r.city_id",
             text="{title} is a reader, born in {born}, who lives in {city}."),
    Sentence(sql="SELECT r.name AS title, b.title AS book, i.name AS library, l.year, l.days FROM loans l JOIN readers r "
                 "ON r.id = l.reader_id JOIN books b ON b.id = l.book_id JOIN libraries i ON i.id = l.library_id",
             text="In {year} {title} borrowed the {book} from {library} for {days} days."),
)
LETTERS = Theme(name="letters", rules=RULES, templates=TEMPLATES, sentences=SENTENCES)
