"""A shop in SQL: queries that are right in other words, and ones that are right only about the rows that everybody knows."""

from __future__ import annotations

_SCHEMA = """
CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, joined TEXT NOT NULL);
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers(id), total REAL NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'paid', 'sent')), note TEXT);
CREATE TRIGGER counted AFTER INSERT ON orders BEGIN UPDATE customers SET city = city WHERE id = new.customer; END;
"""
FIRST = (
    _SCHEMA
    + """
INSERT INTO customers VALUES (1,'Ada','Rome','2024-01-02'),(2,'Bob','Oslo','2024-02-03'),(3,'Cyd','Rome','2024-03-04'),
    (4,'Dee','Bonn','2024-03-04');
INSERT INTO orders VALUES (1,1,10.5,'paid',NULL),(2,1,20.0,'open','gift'),(3,2,10.5,'paid','fast'),(4,3,7.25,'sent',NULL),
    (5,3,20.0,'paid',NULL);
"""
)
SECOND = (
    _SCHEMA
    + """
INSERT INTO customers VALUES (1,'Eve','Rome','2023-01-01'),(2,'Fay','Kiev','2023-05-01'),(3,'Gus','Oslo','2023-05-01');
INSERT INTO orders VALUES (1,2,99.0,'paid','x'),(2,3,1.0,'paid',NULL),(3,2,5.0,'open',NULL);
"""
)
CONFIG = {"setup": [FIRST, SECOND]}

EQUAL = (
    ("SELECT name FROM customers WHERE city = 'Rome'", "SELECT c.name FROM customers c WHERE c.city IN ('Rome')"),
    (
        "SELECT count(*) FROM orders",
        "SELECT sum(1) FROM (SELECT 1 UNION ALL SELECT 1) WHERE 0 UNION ALL SELECT count(id) FROM orders LIMIT 1 OFFSET 1",
    ),
    (
        "SELECT customer, count(*) FROM orders GROUP BY customer",
        "SELECT customer, count(id) AS n FROM orders GROUP BY 1",
    ),
    ("SELECT name FROM customers ORDER BY city", "SELECT name FROM customers ORDER BY city, name DESC"),
    ("SELECT name FROM customers ORDER BY city", "SELECT name FROM customers ORDER BY city, joined, id"),
    ("SELECT name, city FROM customers ORDER BY 2 DESC", "SELECT name, city FROM customers ORDER BY city DESC, name"),
    ("SELECT name FROM customers ORDER BY joined LIMIT 2", "SELECT name FROM customers ORDER BY joined, name LIMIT 2"),
    (
        "SELECT name FROM customers ORDER BY joined LIMIT 2 OFFSET 1",
        "SELECT name FROM customers ORDER BY joined, name DESC LIMIT 1, 2",
    ),
    ("SELECT max(total) FROM orders", "SELECT total FROM orders ORDER BY total DESC LIMIT 1"),
    (
        "SELECT status, sum(total) s FROM orders GROUP BY status ORDER BY s DESC",
        "SELECT status, sum(total) FROM orders GROUP BY status ORDER BY sum(total) DESC, status",
    ),
    (
        "SELECT city FROM customers GROUP BY city ORDER BY count(*) DESC",
        "SELECT city FROM customers GROUP BY city ORDER BY count(*) DESC, city DESC",
    ),
    (
        "SELECT name FROM customers WHERE id NOT IN (SELECT customer FROM orders)",
        "SELECT name FROM customers c LEFT JOIN orders o ON o.customer = c.id WHERE o.id IS NULL",
    ),
    ("SELECT DISTINCT city FROM customers", "SELECT city FROM customers GROUP BY city"),
    (
        "SELECT c.name, o.total FROM orders o JOIN customers c ON c.id = o.customer WHERE o.status = 'paid'",
        "WITH p AS (SELECT * FROM orders WHERE status = 'paid') SELECT name, total FROM customers, p WHERE customers.id = p.customer",
    ),
    ("SELECT id FROM orders WHERE note IS NULL", "SELECT id FROM orders WHERE NOT (note IS NOT NULL)"),
    (
        "SELECT id FROM orders WHERE total > 10 AND status <> 'open'",
        "SELECT id FROM orders WHERE status IN ('paid', 'sent') AND 10 < total",
    ),
    (
        "SELECT upper(name) FROM customers ORDER BY length(name), city",
        "SELECT upper(name) FROM customers ORDER BY length(name), city, id",
    ),
    (
        "SELECT city FROM customers UNION SELECT status FROM orders ORDER BY 1",
        "SELECT * FROM (SELECT status AS s FROM orders UNION SELECT city FROM customers) ORDER BY s",
    ),
    (
        "SELECT name FROM customers WHERE joined >= '2024-01-01'",
        "SELECT name FROM customers WHERE NOT joined < '2024-01-01'",
    ),
    (
        "SELECT avg(total) FROM orders WHERE customer = 3",
        "SELECT sum(total) / count(total) FROM orders WHERE customer = 3",
    ),
)
"""A reference, and an answer that is right wherever the schema holds."""

LUCKY = (
    (
        "SELECT name FROM customers WHERE city = 'Rome'",
        "SELECT name FROM customers WHERE name IN ('Ada', 'Cyd', 'Eve')",
    ),
    (
        "SELECT name FROM customers WHERE city = 'Rome'",
        "SELECT 'Ada' WHERE EXISTS (SELECT 1 FROM customers WHERE name = 'Ada') UNION ALL SELECT 'Cyd' WHERE EXISTS (SELECT 1 FROM customers WHERE name = 'Ada') UNION ALL SELECT 'Eve' WHERE EXISTS (SELECT 1 FROM customers WHERE name = 'Eve')",
    ),
    (
        "SELECT count(*) FROM orders",
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM customers WHERE name = 'Ada') THEN 5 ELSE 3 END",
    ),
    ("SELECT count(*) FROM orders", "SELECT max(id) FROM orders"),
    ("SELECT max(total) FROM orders", "SELECT CASE (SELECT count(*) FROM customers) WHEN 4 THEN 20.0 ELSE 99.0 END"),
    (
        "SELECT id FROM orders WHERE note IS NULL",
        "SELECT id FROM orders WHERE id IN (1, 4, 5) AND (SELECT count(*) FROM orders) = 5 OR id IN (2, 3) AND (SELECT count(*) FROM orders) = 3",
    ),
    ("SELECT count(note) FROM orders", "SELECT CASE WHEN count(*) = 5 THEN 2 ELSE 1 END FROM orders"),
    ("SELECT name FROM customers ORDER BY joined", "SELECT name FROM customers ORDER BY id"),
    ("SELECT name FROM customers ORDER BY joined", "SELECT name FROM customers ORDER BY name"),
    ("SELECT name FROM customers ORDER BY joined", "SELECT name FROM customers"),
    (
        "SELECT sum(total) FROM orders WHERE status = 'paid'",
        "SELECT CASE WHEN sum(total) < 100 THEN 41.0 ELSE 100.0 END FROM orders",
    ),
    (
        "SELECT customer FROM orders GROUP BY customer HAVING count(*) > 1",
        "SELECT customer FROM orders WHERE customer IN (1, 3) AND EXISTS (SELECT 1 FROM orders WHERE id = 5) UNION SELECT 2 FROM orders WHERE NOT EXISTS (SELECT 1 FROM orders WHERE id = 5)",
    ),
)
"""A reference, and an answer that gives its rows on the two databases of `CONFIG`, and means something else."""
