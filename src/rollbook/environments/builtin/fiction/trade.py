"""A world of harbours, guilds, ships and voyages."""

from __future__ import annotations

import random
from typing import Any

from rollbook.environments.builtin.fiction.tables import Column, Names, Rule, Sentence, Table, Template, Theme

NOW = 812                                # the year in which the world is told
GOODS = ("salt", "timber", "amber", "wool", "copper", "glass", "honey", "tar", "ivory", "barley")


def rows(drawn: random.Random, size: int) -> tuple[Table, ...]:
    """Tables with `size` rows in all."""
    names = Names(drawn)
    provinces = [(index, names.of("{} March", "{}land", "the {} Coast", "Upper {}"),
                  drawn.randint(300, 520)) for index in range(1, 7)]
    towns = []
    for index in range(1, 25):
        province = drawn.choice(provinces)
        towns.append((index, names.word(2), province[0], drawn.randint(province[2], NOW - 150),
                      drawn.randint(12, 940) * 100 + index))
    people = []
    for index in range(1, 71):
        born = drawn.randint(690, 778)
        age = drawn.randint(35, 88)
        people.append((index, names.person(), born, born + age if born + age < NOW else None, drawn.choice(towns)[0]))
    guilds = []
    for index in range(1, 19):
        founder = drawn.choice(people)
        founded = drawn.randint(founder[2] + 18, min(founder[3] or NOW, founder[2] + 60, NOW))
        seat = drawn.choice([town for town in towns if town[3] <= founded])
        guilds.append((index, names.of("Guild of {}", "{} Company", "{} & Sons", "House {}"), seat[0], founder[0], founded))
    ships = []
    for index in range(1, 35):
        guild = drawn.choice(guilds)
        ships.append((index, names.of("{}", "Star of {}", "Lady {}", "{}'s Hope"), guild[0], drawn.randint(guild[4], NOW),
                      drawn.randint(20, 400) + index))
    fixed = len(provinces) + len(towns) + len(people) + len(guilds) + len(ships)
    voyages = []
    grown = [person for person in people if person[2] + 18 <= NOW]
    for index in range(1, (size - fixed) // 2 + 1):
        ship = drawn.choice(ships)
        able = [person for person in grown if person[2] + 18 <= (person[3] or NOW) and (person[3] or NOW) >= ship[3]]
        captain = drawn.choice(able)
        year = drawn.randint(max(ship[3], captain[2] + 18), max(ship[3], captain[2] + 18, min(captain[3] or NOW, NOW)))
        start, end = drawn.sample([town[0] for town in towns], 2)
        voyages.append((index, ship[0], captain[0], start, end, year, drawn.randint(3, 95)))
    cargo: list[tuple[Any, ...]] = []
    for index in range(1, size - fixed - len(voyages) + 1):
        voyage = voyages[index - 1] if index <= len(voyages) else drawn.choice(voyages)
        tonnes = next(ship[4] for ship in ships if ship[0] == voyage[1])
        carried = sum(row[3] for row in cargo if row[1] == voyage[0])
        cargo.append((index, voyage[0], drawn.choice(GOODS), drawn.randint(1, max(1, (tonnes - carried) // 3)),
                      drawn.randint(2, 60)))
    return _tables(provinces, towns, people, guilds, ships, voyages, cargo)


def _tables(*data: list) -> tuple[Table, ...]:      # type: ignore[type-arg]
    key, name = Column(name="id"), Column(name="name", kind="text")
    columns = {
        "provinces": (key, name, Column(name="settled")),
        "towns": (key, name, Column(name="province_id", refers="provinces.id"), Column(name="founded"),
                  Column(name="inhabitants")),
        "people": (key, name, Column(name="born"), Column(name="died"), Column(name="birthplace_id", refers="towns.id")),
        "guilds": (key, name, Column(name="seat_id", refers="towns.id"), Column(name="founder_id", refers="people.id"),
                   Column(name="founded")),
        "ships": (key, name, Column(name="guild_id", refers="guilds.id"), Column(name="built"), Column(name="tonnes")),
        "voyages": (key, Column(name="ship_id", refers="ships.id"), Column(name="captain_id", refers="people.id"),
                    Column(name="from_id", refers="towns.id"), Column(name="to_id", refers="towns.id"), Column(name="year"),
                    Column(name="days")),
        "cargo": (key, Column(name="voyage_id", refers="voyages.id"), Column(name="good", kind="text"), Column(name="tonnes"),
                  Column(name="price_per_tonne")),
    }
    return tuple(Table(name=table, columns=columns[table], rows=tuple(map(tuple, part)))
                 for table, part in zip(columns, data, strict=True))


RULES = (
    Rule(says="a town is not older than its province's settlement",
         sql="SELECT t.id FROM towns t JOIN provinces p ON p.id = t.province_id WHERE t.founded < p.settled"),
    Rule(says="nobody dies before being born, or lives beyond 90 years",
         sql=f"SELECT id FROM people WHERE COALESCE(died, {NOW}) < born OR COALESCE(died, {NOW}) - born > 130"),
    Rule(says="a founder is grown up and alive",
         sql=f"SELECT g.id FROM guilds g JOIN people p ON p.id = g.founder_id WHERE g.founded < p.born + 18 "
             f"OR g.founded > COALESCE(p.died, {NOW})"),
    Rule(says="a guild's seat exists when the guild is founded",
         sql="SELECT g.id FROM guilds g JOIN towns t ON t.id = g.seat_id WHERE g.founded < t.founded"),
    Rule(says="a ship is built when its guild exists",
         sql=f"SELECT s.id FROM ships s JOIN guilds g ON g.id = s.guild_id WHERE s.built < g.founded OR s.built > {NOW}"),
    Rule(says="a ship sails after it was built", sql="SELECT v.id FROM voyages v JOIN ships s ON s.id = v.ship_id WHERE v.year "
                                                     "< s.built"),
    Rule(says="a captain is grown up and alive",
         sql=f"SELECT v.id FROM voyages v JOIN people p ON p.id = v.captain_id WHERE v.year < p.born + 18 "
             f"OR v.year > COALESCE(p.died, {NOW})"),
    Rule(says="a voyage goes somewhere else", sql="SELECT id FROM voyages WHERE from_id = to_id"),
    Rule(says="no ship carries more than it can",
         sql="SELECT v.id FROM voyages v JOIN ships s ON s.id = v.ship_id JOIN cargo c ON c.voyage_id = v.id "
             "GROUP BY v.id HAVING SUM(c.tonnes) > s.tonnes"),
)
TEMPLATES = (
    Template(name="founded", text="In which year was {guild} founded?", choose="SELECT name AS guild FROM guilds",
             sql="SELECT founded FROM guilds WHERE name = :guild", kind="number", hops=1),
    Template(name="birthplace of a founder", text="In which town was the founder of {guild} born?",
             choose="SELECT name AS guild FROM guilds",
             sql="SELECT t.name FROM guilds g JOIN people p ON p.id = g.founder_id JOIN towns t ON t.id = p.birthplace_id "
                 "WHERE g.name = :guild", kind="text", hops=2),
    Template(name="province of a seat", text="In which province does {guild} have its seat?",
             choose="SELECT name AS guild FROM " "guilds",
             sql="SELECT p.name FROM guilds g JOIN towns t ON t.id = g.seat_id JOIN provinces p ON p.id = t.province_id "
                 "WHERE g.name = :guild", kind="text", hops=2),
    Template(name="age at founding", text="How many years after the birth of its founder was {guild} founded?",
             choose="SELECT name AS guild FROM guilds",
             sql="SELECT g.founded - p.born FROM guilds g JOIN people p ON p.id = g.founder_id WHERE g.name = :guild",
             kind="number", hops=2),
    Template(name="voyages of a captain", text="How many voyages did {captain} lead?",
             choose="SELECT name AS captain FROM people WHERE id IN (SELECT captain_id FROM voyages)",
             sql="SELECT COUNT(*) FROM voyages v JOIN people p ON p.id = v.captain_id WHERE p.name = :captain",
             kind="number", hops=2),
    Template(name="value of a ship's cargo", text="What was the total price of all cargo that the ship {ship} carried?",
             choose="SELECT name AS ship FROM ships WHERE id IN (SELECT ship_id FROM voyages)",
             sql="SELECT SUM(c.tonnes * c.price_per_tonne) FROM cargo c JOIN voyages v ON v.id = c.voyage_id "
                 "JOIN ships s ON s.id = v.ship_id WHERE s.name = :ship", kind="number", hops=3),
    Template(name="largest ship of a guild", text="Which ship of {guild} can carry most?",
             choose="SELECT g.name AS guild FROM guilds g JOIN ships s ON s.guild_id = g.id GROUP BY g.id HAVING COUNT(*) > 1",
             sql="SELECT s.name, s.tonnes FROM ships s JOIN guilds g ON g.id = s.guild_id WHERE g.name = :guild "
                 "ORDER BY s.tonnes DESC", kind="best", hops=2),
    Template(name="goods between provinces", text="How many tonnes of {good} were carried to towns in {province}?",
             choose="SELECT DISTINCT c.good AS good, p.name AS province FROM cargo c JOIN voyages v ON v.id = c.voyage_id "
                    "JOIN towns t ON t.id = v.to_id JOIN provinces p ON p.id = t.province_id",
             sql="SELECT SUM(c.tonnes) FROM cargo c JOIN voyages v ON v.id = c.voyage_id JOIN towns t ON t.id = v.to_id "
                 "JOIN provinces p ON p.id = t.province_id WHERE c.good = :good AND p.name = :province", kind="number", hops=4),
    Template(name="destinations of a ship", text="To which towns did the ship {ship} sail?",
             choose="SELECT s.name AS ship FROM ships s JOIN voyages v ON v.ship_id = s.id GROUP BY s.id HAVING COUNT(*) "
                    "BETWEEN 2 AND 5",
             sql="SELECT DISTINCT t.name FROM voyages v JOIN ships s ON s.id = v.ship_id JOIN towns t ON t.id = v.to_id "
                 "WHERE s.name = :ship", kind="list", hops=3),
    Template(name="busiest captain of a province", text="Among people born in {province}, who led most voyages?",
             choose="SELECT name AS province FROM provinces",
             sql="SELECT p.name, COUNT(*) AS voyages FROM voyages v JOIN people p ON p.id = v.captain_id JOIN towns t "
                 "ON t.id = p.birthplace_id JOIN provinces r ON r.id = t.province_id WHERE r.name = :province GROUP BY p.id "
                 "ORDER BY voyages DESC", kind="best", hops=4),
)
SENTENCES = (
    Sentence(sql="SELECT name AS title, settled FROM provinces", text="{title} is a province that was settled in {settled}."),
    Sentence(sql="SELECT t.name AS title, p.name AS province, t.founded, t.inhabitants FROM towns t JOIN provinces p ON p.id = "
                 "t.province_id",
             text="{title} is a town in {province}. It was founded in {founded} and has {inhabitants} inhabitants."),
    Sentence(sql="SELECT p.name AS title, t.name AS town, p.born FROM people p JOIN towns t ON t.id = p.birthplace_id",
             text="{title} was born in {town} in {born}."),
    Sentence(sql="SELECT name AS title, died FROM people WHERE died IS NOT NULL", text="{title} died in {died}."),
    Sentence(sql="SELECT g.name AS title, t.name AS town, p.name AS founder, g.founded FROM guilds g JOIN towns t ON t.id = "
                 "g.seat_id "
                 "JOIN people p ON p.id = g.founder_id",
             text="{title} is a guild with its seat in {town}. It was founded by {founder} in {founded}."),
    Sentence(sql="SELECT s.name AS title, g.name AS guild, s.built, s.tonnes FROM ships s JOIN guilds g ON g.id = s.guild_id",
             text="{title} is a ship of {guild}. It was built in {built} and can carry {tonnes} tonnes."),
    Sentence(sql="SELECT s.name AS title, p.name AS captain, a.name AS start, b.name AS finish, v.year, v.days, "
                 "(SELECT GROUP_CONCAT(c.tonnes || ' tonnes of ' || c.good || ' at ' || c.price_per_tonne || ' a tonne', ', ') "
                 "FROM cargo c WHERE c.voyage_id = v.id) AS load FROM voyages v JOIN ships s ON s.id = v.ship_id JOIN people p "
                 "ON p.id = v.captain_id JOIN towns a ON a.id = v.from_id JOIN towns b ON b.id = v.to_id",
             text="In {year} {captain} sailed the ship {title} from {start} to {finish} in {days} days with {load}."),
)
TRADE = Theme(name="trade", rules=RULES, templates=TEMPLATES, sentences=SENTENCES)
