"""A world of clubs, players, grounds and matches."""

from __future__ import annotations

import random

from rollbook.environments.builtin.fiction.tables import Column, Names, Rule, Sentence, Table, Template, Theme

FIRST, LAST = 2201, 2206                 # seasons
POSITIONS = ("keeper", "back", "half", "wing", "striker")


def rows(drawn: random.Random, size: int) -> tuple[Table, ...]:
    """Tables with `size` rows in all."""
    names = Names(drawn)
    grounds = [(index, names.of("{} Park", "{} Field", "The {}"), drawn.randint(2150, FIRST),
                drawn.randint(30, 700) * 100 + index)
               for index in range(1, 13)]
    coaches = [(index, names.person(), drawn.randint(2135, 2170)) for index in range(1, 19)]
    clubs = [(index, names.of("{} United", "{} Rovers", "Sporting {}", "{} 1890"), grounds[index - 1][0], coaches[index - 1][0],
              drawn.randint(2140, FIRST - 2)) for index in range(1, 13)]
    players = [(index, names.person(), drawn.randint(2168, 2185), drawn.choice(POSITIONS), clubs[(index - 1) % len(clubs)][0])
               for index in range(1, 97)]
    fixed = len(grounds) + len(coaches) + len(clubs) + len(players)
    matches: list[tuple[int, ...]] = []
    goals: list[tuple[int, ...]] = []
    while fixed + len(matches) + len(goals) < size:
        home, away = drawn.sample(clubs, 2)
        season = drawn.randint(FIRST, LAST)
        left = size - fixed - len(matches) - 1 - len(goals)
        scored = min(drawn.choice((0, 1, 1, 2, 2, 3, 4)), left)
        at_home = drawn.randint(0, scored)
        index = len(matches) + 1
        matches.append((index, season, home[0], away[0], at_home, scored - at_home, drawn.randint(8, 300) * 10 + index % 10))
        for number in range(scored):
            side = home[0] if number < at_home else away[0]
            scorer = drawn.choice([player for player in players if player[4] == side])
            goals.append((len(goals) + 1, index, scorer[0], drawn.randint(1, 90)))
    key, name = Column(name="id"), Column(name="name", kind="text")
    return (
        Table(name="grounds", columns=(key, name, Column(name="opened"), Column(name="places")), rows=tuple(grounds)),
        Table(name="coaches", columns=(key, name, Column(name="born")), rows=tuple(coaches)),
        Table(name="clubs", columns=(key, name, Column(name="ground_id", refers="grounds.id"),
                                     Column(name="coach_id", refers="coaches.id"), Column(name="founded")), rows=tuple(clubs)),
        Table(name="players", columns=(key, name, Column(name="born"), Column(name="position", kind="text"),
                                       Column(name="club_id", refers="clubs.id")), rows=tuple(players)),
        Table(name="matches", columns=(key, Column(name="season"), Column(name="home_id", refers="clubs.id"),
                                       Column(name="away_id", refers="clubs.id"), Column(name="home_goals"),
                                       Column(name="away_goals"),
                                       Column(name="spectators")), rows=tuple(matches)),
        Table(name="goals", columns=(key, Column(name="match_id", refers="matches.id"),
                                     Column(name="player_id", refers="players.id"),
                                     Column(name="minute")), rows=tuple(goals)),
    )


RULES = (
    Rule(says="every goal of a match has its scorer",
         sql="SELECT m.id FROM matches m WHERE m.home_goals + m.away_goals <> (SELECT COUNT(*) FROM goals g WHERE g.match_id = "
             "m.id)"),
    Rule(says="a club's goals are scored by its players",
         sql="SELECT m.id FROM matches m WHERE m.home_goals <> (SELECT COUNT(*) FROM goals g JOIN players p ON p.id = "
             "g.player_id "
             "WHERE g.match_id = m.id AND p.club_id = m.home_id)"),
    Rule(says="nobody scores for a club that does not play",
         sql="SELECT g.id FROM goals g JOIN matches m ON m.id = g.match_id JOIN players p ON p.id = g.player_id "
             "WHERE p.club_id NOT IN (m.home_id, m.away_id)"),
    Rule(says="a player is grown up in the first season", sql=f"SELECT id FROM players WHERE {FIRST} - born < 16"),
    Rule(says="no club plays against itself", sql="SELECT id FROM matches WHERE home_id = away_id"),
    Rule(says="no more spectators than places",
         sql="SELECT m.id FROM matches m JOIN clubs c ON c.id = m.home_id JOIN grounds g ON g.id = c.ground_id WHERE "
             "m.spectators > g.places"),
    Rule(says="a ground is open and a club founded before the first season",
         sql=f"SELECT id FROM grounds WHERE opened > {FIRST} UNION ALL SELECT id FROM clubs WHERE founded >= {FIRST}"),
)
TEMPLATES = (
    Template(name="ground of a club", text="On which ground does {club} play its home matches?",
             choose="SELECT name AS club FROM clubs",
             sql="SELECT g.name FROM clubs c JOIN grounds g ON g.id = c.ground_id WHERE c.name = :club", kind="text", hops=1),
    Template(name="coach of a player", text="Who coaches the club of {player}?", choose="SELECT name AS player FROM players",
             sql="SELECT o.name FROM players p JOIN clubs c ON c.id = p.club_id JOIN coaches o ON o.id = c.coach_id WHERE "
                 "p.name = :player",
             kind="text", hops=2),
    Template(name="places for a player", text="How many places has the home ground of the club that {player} plays for?",
             choose="SELECT name AS player FROM players",
             sql="SELECT g.places FROM players p JOIN clubs c ON c.id = p.club_id JOIN grounds g ON g.id = c.ground_id "
                 "WHERE p.name = :player", kind="number", hops=2),
    Template(name="goals of a player", text="How many goals did {player} score in all seasons together?",
             choose="SELECT name AS player FROM players WHERE id IN (SELECT player_id FROM goals)",
             sql="SELECT COUNT(*) FROM goals g JOIN players p ON p.id = g.player_id WHERE p.name = :player", kind="number",
             hops=2),
    Template(name="home goals of a season", text="How many goals did {club} score at home in season {season}?",
             choose="SELECT DISTINCT c.name AS club, m.season AS season FROM matches m JOIN clubs c ON c.id = m.home_id",
             sql="SELECT SUM(m.home_goals) FROM matches m JOIN clubs c ON c.id = m.home_id WHERE c.name = :club AND m.season = "
                 ":season",
             kind="number", hops=2),
    Template(name="best scorer of a club", text="Who scored most goals for {club}?", choose="SELECT name AS club FROM clubs",
             sql="SELECT p.name, COUNT(*) AS goals FROM goals g JOIN players p ON p.id = g.player_id JOIN clubs c ON c.id = "
                 "p.club_id "
                 "WHERE c.name = :club GROUP BY p.id ORDER BY goals DESC", kind="best", hops=3),
    Template(name="oldest player of a coach", text="Who is the oldest player in the club that {coach} coaches?",
             choose="SELECT o.name AS coach FROM coaches o JOIN clubs c ON c.coach_id = o.id",
             sql="SELECT p.name, p.born FROM players p JOIN clubs c ON c.id = p.club_id JOIN coaches o ON o.id = c.coach_id "
                 "WHERE o.name = :coach ORDER BY p.born", kind="best", hops=3),
    Template(name="points of a season", text="With three points for a win and one for a draw, how many points did {club} have "
                                             "in season {season}?",
             choose="SELECT DISTINCT c.name AS club, m.season AS season FROM matches m JOIN clubs c ON c.id IN (m.home_id, "
                    "m.away_id)",
             sql="SELECT SUM(CASE WHEN m.home_goals = m.away_goals THEN 1 WHEN (m.home_goals > m.away_goals) = (m.home_id = "
                 "c.id) THEN 3 "
                 "ELSE 0 END) FROM matches m JOIN clubs c ON c.id IN (m.home_id, m.away_id) WHERE c.name = :club AND m.season = "
                 ":season",
             kind="number", hops=4),
    Template(name="scorers against a club", text="Which players scored against {club} in season {season}?",
             choose="SELECT c.name AS club, m.season AS season FROM matches m JOIN clubs c ON c.id IN (m.home_id, m.away_id) "
                    "JOIN goals g ON g.match_id = m.id JOIN players p ON p.id = g.player_id AND p.club_id <> c.id "
                    "GROUP BY c.id, m.season HAVING COUNT(DISTINCT p.id) BETWEEN 2 AND 5",
             sql="SELECT DISTINCT p.name FROM goals g JOIN matches m ON m.id = g.match_id JOIN players p ON p.id = g.player_id "
                 "JOIN clubs c ON c.id IN (m.home_id, m.away_id) AND p.club_id <> c.id WHERE c.name = :club AND m.season = "
                 ":season",
             kind="list", hops=4),
)
SENTENCES = (
    Sentence(sql="SELECT name AS title, opened, places FROM grounds", text="{title} is a ground with {places} places, opened in "
                                                                           "{opened}."),
    Sentence(sql="SELECT name AS title, born FROM coaches", text="{title} is a coach, born in {born}."),
    Sentence(sql="SELECT c.name AS title, g.name AS ground, o.name AS coach, c.founded FROM clubs c JOIN grounds g ON g.id = "
                 "c.ground_id "
                 "JOIN coaches o ON o.id = c.coach_id",
             text="{title} is a club founded in {founded}. It plays at home on {ground} and is coached by {coach}."),
    Sentence(sql="SELECT p.name AS title, p.born, p.position, c.name AS club FROM players p JOIN clubs c ON c.id = p.club_id",
             text="{title}, born in {born}, plays as {position} for {club}."),
    Sentence(sql="SELECT h.name AS title, a.name AS guest, m.season, m.home_goals, m.away_goals, m.spectators, "
                 "COALESCE((SELECT 'Scorers: ' || GROUP_CONCAT(p.name || ' (' || g.minute || ')', ', ') || '.' FROM goals g "
                 "JOIN players p ON p.id = g.player_id WHERE g.match_id = m.id), '') AS scorers FROM matches m JOIN clubs h "
                 "ON h.id = m.home_id JOIN clubs a ON a.id = m.away_id",
             text="In season {season} {title} played at home against {guest}, {home_goals} to {away_goals}, before {spectators} "
                  "spectators. {scorers}"),
)
LEAGUE = Theme(name="league", rules=RULES, templates=TEMPLATES, sentences=SENTENCES)
