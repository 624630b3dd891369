"""Statements for the comparison of SQLite with MariaDB, by kind.

`EQUAL` give the same on both engines, `DIFFERENT` do not. `people` has accents,
numbers as text, dates, quotes and empty cells; `Paid Bills` has a name that needs quotes.
"""

PEOPLE = (
  ("id", "name", "city", "age", "joined", "note"),
  (
    ("1", "Anna Reed", "Oslo", "7", "2019-05-31", "x"),
    ("2", "Ben Hill", "oslo", "45", "2020-01-15", "3 km"),
    ("3", "Cara", "Rome", "128", "2020-02-29", "1,200"),
    ("4", "Dan O'Neil", "Paris", "9.5", "2018-12-01", ""),
    ("5", "Élan", "rome", "128", "not yet", "-3"),
    ("6", "anna reed", "", "", "2021-11-05", "50%"),
  ),
)
BILLS = (
  ("Bill No", "person id", "amount", "paid"),
  (
    ("A-1", "1", "10.50", "yes"),
    ("A-2", "1", "9.5", "no"),
    ("B-1", "2", "100", "yes"),
    ("B-2", "9", "1e2", "YES"),
    ("C_1", "3", "$7", "n/a"),
  ),
)

_READS = {
  "clauses": """
SELECT * FROM people
SELECT people.* FROM people WHERE id = 3
SELECT id, name AS n FROM people AS p WHERE p.city = 'Rome'
SELECT DISTINCT city FROM people
SELECT DISTINCT city, age FROM people
SELECT ALL id FROM people
SELECT name FROM people WHERE city = 'rome' AND age > 100
SELECT name FROM people WHERE city = 'rome' OR age < 9 AND id > 1
SELECT name FROM people WHERE (city = 'rome' OR age < 9) AND id > 1
SELECT name FROM people WHERE NOT (city = 'rome')
SELECT name FROM people WHERE city <> 'rome' XOR id > 4
SELECT name FROM people WHERE city = 'rome' && id > 3
SELECT name FROM people WHERE city = 'rome' || id = 1
SELECT name FROM people WHERE !(id > 3)
SELECT city, COUNT(*) FROM people GROUP BY city ORDER BY 2 DESC, 1
SELECT city, COUNT(*) AS n FROM people GROUP BY city HAVING n > 1 ORDER BY city
SELECT city, COUNT(*) FROM people GROUP BY city HAVING COUNT(*) > 1 ORDER BY city
SELECT COUNT(*) FROM people HAVING COUNT(*) > 10
SELECT name FROM people ORDER BY name
SELECT name FROM people ORDER BY name DESC
SELECT name FROM people ORDER BY city, name
SELECT name, age FROM people ORDER BY 2, 1
SELECT name AS x FROM people ORDER BY x
SELECT name FROM people ORDER BY age + 0, id
SELECT name FROM people ORDER BY LENGTH(name), name
SELECT name FROM people ORDER BY CAST(age AS DECIMAL(10, 2)) DESC, id
SELECT name FROM people ORDER BY age = '', id
SELECT name FROM people ORDER BY FIELD(city, 'Rome', 'Oslo'), id
SELECT id FROM people LIMIT 2
SELECT id FROM people LIMIT 1, 2
SELECT id FROM people LIMIT 2 OFFSET 3
SELECT id FROM people LIMIT 0
SELECT id FROM people LIMIT 100 OFFSET 5
SELECT id FROM people LIMIT -1
SELECT id FROM people LIMIT 1.5
SELECT id FROM people LIMIT '1'
SELECT id FROM people OFFSET 2
SELECT 1 FROM DUAL
SELECT 1 WHERE 1 = 0
SELECT 1 AS a, 2 b
SELECT 'x' 'y'
SELECT 1 UNION SELECT 2
SELECT 1 UNION ALL SELECT 1
SELECT city FROM people UNION SELECT name FROM people ORDER BY 1
(SELECT id FROM people ORDER BY id DESC LIMIT 1) UNION (SELECT 'z')
SELECT id FROM people WHERE id IN (SELECT `person id` FROM `Paid Bills`)
SELECT id FROM people WHERE id NOT IN (SELECT `person id` FROM `Paid Bills`)
SELECT id FROM people p WHERE EXISTS (SELECT 1 FROM `Paid Bills` b WHERE b.`person id` = p.id)
SELECT (SELECT COUNT(*) FROM `Paid Bills` b WHERE b.`person id` = p.id) FROM people p
SELECT name FROM people WHERE age = (SELECT MAX(age) FROM people)
SELECT name FROM people WHERE age + 0 = (SELECT MAX(age + 0) FROM people)
SELECT t.c, COUNT(*) FROM (SELECT LOWER(city) c FROM people) t GROUP BY t.c ORDER BY 1
SELECT COUNT(*) FROM (SELECT DISTINCT city FROM people)
WITH t AS (SELECT city, COUNT(*) n FROM people GROUP BY city) SELECT MAX(n) FROM t
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 4) SELECT n FROM t
""",
  "joins": """
SELECT p.name, b.amount FROM people p JOIN `Paid Bills` b ON p.id = b.`person id` ORDER BY b.`Bill No`
SELECT p.name, b.amount FROM people p, `Paid Bills` b WHERE p.id = b.`person id` ORDER BY b.`Bill No`
SELECT p.name, b.amount FROM people p LEFT JOIN `Paid Bills` b ON p.id = b.`person id` ORDER BY p.id, b.`Bill No`
SELECT p.name, b.amount FROM people p RIGHT JOIN `Paid Bills` b ON p.id = b.`person id` ORDER BY b.`Bill No`
SELECT COUNT(*) FROM people CROSS JOIN `Paid Bills`
SELECT a.id, b.id FROM people a INNER JOIN people b ON a.city = b.city AND a.id < b.id ORDER BY 1
SELECT COUNT(*) FROM people a JOIN people b USING (city)
SELECT COUNT(*) FROM people NATURAL JOIN people AS b
SELECT p.name, SUM(b.amount) FROM people p JOIN `Paid Bills` b ON p.id = b.`person id` GROUP BY p.name ORDER BY 1
SELECT p.name FROM people p LEFT JOIN `Paid Bills` b ON p.id = b.`person id` WHERE b.amount IS NULL ORDER BY p.id
SELECT id FROM people a JOIN people b ON a.id = b.id
SELECT p.name FROM people p FULL OUTER JOIN `Paid Bills` b ON p.id = b.`person id`
""",
  "numbers": """
SELECT 1 + 1, 1 - 2, 2 * 3, 7 / 2, 7 DIV 2, 7 % 3, 7 MOD 3, -7 % 3, -7 DIV 2
SELECT 1 / 0, 1 % 0, 1 DIV 0, 0 / 0, 1.5 / 0
SELECT 1 / 3, 2 / 3, 10 / 4, 1.0 / 3, 1e0 / 3
SELECT 0.1 + 0.2, 0.1e0 + 0.2e0, 1.10 + 1, 1.10 * 2.20
SELECT 1.5 % 1, 5.5 % 2, MOD(5.5, 2)
SELECT '3' + 4, '3.5' + 4, 'x' + 1, '3 km' + 1, '' + 1, '1e2' + 0, '-3' + 0, ' 7 ' + 0
SELECT '3' * '4', '10' / '4', '7' DIV '2', '7' % '4', - '5', - 'x'
SELECT age + 1 FROM people
SELECT age * 2, age / 2, age - 1, -age FROM people
SELECT age DIV 2, age % 2 FROM people
SELECT SUM(age), AVG(age), MAX(age), MIN(age), COUNT(age) FROM people
SELECT SUM(age + 0), AVG(age + 0), MAX(age + 0), MIN(age + 0) FROM people
SELECT SUM(CAST(age AS SIGNED)), AVG(CAST(age AS SIGNED)) FROM people
SELECT SUM(CAST(age AS DECIMAL(10, 2))), AVG(CAST(age AS DECIMAL(10, 2))) FROM people
SELECT SUM(id) / COUNT(*), COUNT(*) / 2, COUNT(*) * 1.0 FROM people
SELECT SUM(amount), AVG(amount), MAX(amount) FROM `Paid Bills`
SELECT SUM(REPLACE(note, ',', '')) FROM people
SELECT COUNT(DISTINCT city), COUNT(DISTINCT age), COUNT(DISTINCT city, age) FROM people
SELECT SUM(DISTINCT age) FROM people
SELECT SUM(age > 9), SUM(city = 'Rome'), AVG(city = 'Rome') FROM people
SELECT SUM(NULL), AVG(NULL), MAX(NULL), COUNT(NULL)
SELECT SUM(age) FROM people WHERE id > 100
SELECT ROUND(2.5), ROUND(-2.5), ROUND(3.14159, 2), ROUND(1234.5, -2), ROUND('2.5')
SELECT ROUND(AVG(age), 2), ROUND(SUM(id) / 4, 1) FROM people
SELECT FLOOR(2.7), FLOOR(-2.7), CEIL(2.1), CEILING(-2.1), ABS(-3), ABS('-3.5'), SIGN(-2)
SELECT FLOOR(age), CEIL(age), ABS(note) FROM people
SELECT GREATEST(1, 2, 3), LEAST(1, 2, 3), GREATEST('a', 'b'), GREATEST(1, NULL), LEAST('10', '9')
SELECT CONV('ff', 16, 10), HEX(255), BIN(5), OCT(8), HEX('abc')
SELECT TRUE, FALSE, NOT TRUE, TRUE + TRUE
SELECT STD(id), VARIANCE(id), STDDEV_SAMP(id) FROM people
SELECT FORMAT(1234567.891, 2), FORMAT(12, 0), FORMAT(age, 1) FROM people WHERE id < 3
SELECT CAST('12.345' AS DECIMAL(5, 2)), CAST('1e2' AS DECIMAL), CAST(7 AS DECIMAL(5, 1))
SELECT CAST('1.5' AS DOUBLE), CAST(3 AS CHAR), CAST('abc' AS CHAR(2)), CONVERT('12', SIGNED)
""",
  "comparison": """
SELECT '10' < '9', 10 < '9', '10' < 9, '10' + 0 < '9', 'abc' = 0, '1x' = 1, '' = 0
SELECT 1 = 1.0, 1 = '1.0', '1' = '1.0', NULL = NULL, NULL <=> NULL, 1 <=> NULL
SELECT 1 <> 2, 1 != 2, 1 IS TRUE, 0 IS FALSE, NULL IS NULL, NULL IS NOT NULL, NULL IS UNKNOWN
SELECT 1 IN (1, 2), 'a' IN ('A', 'b'), NULL IN (1), 1 IN (2, NULL), '1' IN (1), 1 NOT IN (2)
SELECT 2 BETWEEN 1 AND 3, 'b' BETWEEN 'A' AND 'C', 2 NOT BETWEEN 3 AND 4, '10' BETWEEN 1 AND 20
SELECT NOT NULL, NULL AND 0, NULL AND 1, NULL OR 1, NULL XOR 1
SELECT name FROM people WHERE age > 9
SELECT name FROM people WHERE age > '9'
SELECT name FROM people WHERE age = 128.0
SELECT name FROM people WHERE age = '128.0'
SELECT name FROM people WHERE age = 0
SELECT name FROM people WHERE age IN (7, '45')
SELECT name FROM people WHERE age IN ('7', '45')
SELECT name FROM people WHERE age BETWEEN 8 AND 50
SELECT name FROM people WHERE age BETWEEN '1' AND '5'
SELECT name FROM people WHERE note = 3
SELECT name FROM people WHERE note
SELECT name FROM people WHERE city
SELECT name FROM people WHERE name = 'elan'
SELECT name FROM people WHERE name = 'ANNA REED'
SELECT name FROM people WHERE BINARY name = 'anna reed'
SELECT name FROM people WHERE name = BINARY 'anna reed'
SELECT name FROM people WHERE city = ''
SELECT name FROM people WHERE city IS NULL
SELECT name FROM people WHERE city = NULL
SELECT name FROM people WHERE NULLIF(city, '') IS NULL
SELECT name FROM people WHERE joined > '2019-12-31'
SELECT name FROM people WHERE age > 9 AND age < 130 AND city > 'P'
SELECT name FROM people WHERE 'Oslo' = city
SELECT name FROM people WHERE (city, age) = ('Rome', '128')
SELECT name FROM people WHERE (city, age) IN (('Rome', '128'), ('Oslo', '7'))
SELECT name FROM people WHERE name COLLATE utf8mb4_bin = 'anna reed'
""",
  "like": """
SELECT name FROM people WHERE name LIKE 'anna%'
SELECT name FROM people WHERE name LIKE '%E%'
SELECT name FROM people WHERE name LIKE 'e%'
SELECT name FROM people WHERE name LIKE '____'
SELECT name FROM people WHERE name NOT LIKE '%a%'
SELECT name FROM people WHERE name LIKE '%o''n%'
SELECT name FROM people WHERE note LIKE '%\\%%'
SELECT name FROM people WHERE note LIKE '%|%%' ESCAPE '|'
SELECT `Bill No` FROM `Paid Bills` WHERE `Bill No` LIKE 'C\\_1'
SELECT `Bill No` FROM `Paid Bills` WHERE `Bill No` LIKE '__1'
SELECT name FROM people WHERE age LIKE 128
SELECT name FROM people WHERE age LIKE '1%'
SELECT 'a' LIKE 'A', 'abc' LIKE 'a_c', '' LIKE '%', NULL LIKE 'a', 10 LIKE '1%', 'a' LIKE NULL
SELECT SOUNDEX('Robert'), 'Robert' SOUNDS LIKE 'Rupert'
""",
  "null": """
SELECT NULL, NULL + 1, CONCAT('a', NULL), CONCAT_WS('-', 'a', NULL, 'b')
SELECT IFNULL(NULL, 'x'), IFNULL(1, 2), COALESCE(NULL, NULL, 3), NULLIF(1, 1), NULLIF(1, 2)
SELECT ISNULL(NULL), ISNULL(1), IF(NULL, 1, 2), IF(1 > 0, 'y', 'n')
SELECT CASE WHEN NULL THEN 1 ELSE 2 END, CASE 1 WHEN 1 THEN 'a' END, CASE 1 WHEN 2 THEN 'a' END
SELECT CASE city WHEN 'ROME' THEN 1 WHEN 'Oslo' THEN 2 ELSE 3 END FROM people
SELECT IF(age > 9, 'old', 'young') FROM people
SELECT IF(age, 'set', 'not') FROM people
SELECT COUNT(*), COUNT(NULLIF(city, '')) FROM people
SELECT MAX(NULLIF(age, '')), MIN(NULLIF(age, '')) FROM people
SELECT NULLIF(city, '') c FROM people ORDER BY c
SELECT NULLIF(city, '') c FROM people ORDER BY c DESC
SELECT NULLIF(city, '') c, COUNT(*) FROM people GROUP BY c ORDER BY c
""",
  "text": """
SELECT 'it''s', "it's", 'a"b', "a""b", 'a\\'b', 'a\\nb', 'a\\\\b', 'a\\%b', 'tab\\t', 'a\\xb'
SELECT UPPER('abc'), LOWER('ABC'), UCASE('é'), LCASE('É')
SELECT LENGTH(name), CHAR_LENGTH(name) FROM people
SELECT CONCAT('a', 1, 2.5), CONCAT(name, ' (', age, ')') FROM people WHERE id < 3
SELECT SUBSTRING('hello', 2), SUBSTRING('hello', 2, 3), SUBSTR('hello', -3), MID('hello', 2, 2), SUBSTRING('hello' FROM 2 FOR 2)
SELECT SUBSTRING('hello', 0), SUBSTRING('hello', 10), SUBSTRING('hello', 2, -1), LEFT('hello', 2), RIGHT('hello', 2), LEFT('a', 0), LEFT('a', -1)
SELECT SUBSTRING_INDEX('a,b,c', ',', 1), SUBSTRING_INDEX('a,b,c', ',', -1), SUBSTRING_INDEX('abc', ',', 1)
SELECT TRIM('  a '), LTRIM('  a'), RTRIM('a  '), TRIM(BOTH 'x' FROM 'xax'), TRIM(LEADING '0' FROM '007'), TRIM('x' FROM 'xax')
SELECT REPLACE('aaa', 'a', 'b'), REPLACE('Abc', 'a', 'x'), REPLACE(note, ',', '') FROM people
SELECT LOCATE('b', 'abc'), LOCATE('B', 'abc'), LOCATE('z', 'abc'), INSTR('abc', 'c'), POSITION('b' IN 'abc'), LOCATE('a', 'banana', 3)
SELECT INSERT('Quadratic', 3, 4, 'What'), ELT(2, 'a', 'b'), FIELD('b', 'a', 'b'), FIND_IN_SET('b', 'a,b,c'), STRCMP('a', 'b'), STRCMP('a', 'A')
SELECT GROUP_CONCAT(name) FROM people
SELECT city, GROUP_CONCAT(id SEPARATOR '-') FROM people GROUP BY city ORDER BY city
SELECT MAX(name), MIN(name), MAX(city) FROM people
SELECT JSON_EXTRACT('{"a": 1}', '$.a')
SELECT 'a' + 'b', 'a' || 'b', CONCAT('a', 'b')
""",
  "dates": """
SELECT YEAR('2020-05-01'), MONTH('2020-05-01'), DAY('2020-05-01'), DAYOFMONTH('2020-05-01')
SELECT YEAR(joined), MONTH(joined) FROM people
SELECT DATEDIFF('2020-05-03', '2020-05-01'), DATEDIFF(joined, '2020-01-01') FROM people
SELECT DATE_ADD('2020-01-31', INTERVAL 1 MONTH), DATE_SUB('2020-03-01', INTERVAL 1 DAY), '2020-01-01' + INTERVAL 1 YEAR
SELECT DATE_FORMAT('2020-05-01', '%d/%m/%Y'), DATE_FORMAT('2020-05-01 13:04:05', '%H:%i:%s %p %W %M'), DATE_FORMAT('x', '%Y')
SELECT STR_TO_DATE('01/05/2020', '%d/%m/%Y'), STR_TO_DATE('May 1, 2020', '%M %e, %Y'), STR_TO_DATE('x', '%Y')
SELECT DAYNAME('2020-05-01'), MONTHNAME('2020-05-01'), DAYOFWEEK('2020-05-01'), WEEKDAY('2020-05-01'), DAYOFYEAR('2020-05-01')
SELECT EXTRACT(YEAR FROM '2020-05-01'), EXTRACT(MONTH FROM joined) FROM people
SELECT TIMESTAMPDIFF(YEAR, '2018-06-01', '2020-05-01'), TIMESTAMPDIFF(DAY, '2020-01-01', '2020-01-31')
SELECT CAST('2020-05-01' AS DATE) > '2020-04-30', MAX(CAST(joined AS DATE)) FROM people WHERE id < 4
SELECT id FROM people WHERE YEAR(joined) = 2020
SELECT id FROM people WHERE joined BETWEEN '2020-01-01' AND '2020-12-31'
SELECT id FROM people ORDER BY STR_TO_DATE(joined, '%Y-%m-%d'), id
SELECT id FROM people ORDER BY CAST(joined AS DATE) DESC, id
SELECT NOW() > '2000-01-01', CURDATE() > '2000-01-01', CURRENT_TIMESTAMP IS NOT NULL, YEAR(NOW()) > 2000
""",
  "names": """
SELECT `name` FROM `people`
SELECT NAME, City FROM people WHERE ID = 1
SELECT People.id FROM People
SELECT id FROM dbbench.people
SELECT `Bill No` FROM `Paid Bills`
SELECT `bill no` FROM `Paid Bills`
SELECT Bill No FROM `Paid Bills`
SELECT 'Bill No' FROM `Paid Bills`
SELECT "Bill No" FROM `Paid Bills` WHERE "Bill No" = 'A-1'
SELECT `Bill No` AS 'the bill', amount AS "how much" FROM `Paid Bills` ORDER BY `the bill`
SELECT amount `a``b` FROM `Paid Bills`
SELECT id AS n FROM people WHERE n > 2
SELECT id AS n FROM people HAVING n > 2
SELECT id FROM people HAVING age > 2
SELECT id AS n FROM people GROUP BY n ORDER BY n
SELECT id AS n FROM people ORDER BY n DESC LIMIT 1
SELECT nope FROM people
SELECT p.nope FROM people p
SELECT x.id FROM people p
SELECT people.id FROM people p
SELECT id FROM nope
SELECT id FROM people WHERE nope = 1
SELECT id FROM people ORDER BY nope
SELECT id FROM people GROUP BY nope
SELECT id FROM people HAVING nope = 1
SELECT p.id FROM people p JOIN `Paid Bills` b ON p.nope = b.amount
SELECT id FROM people ORDER BY 9
SELECT COUNT(*) FROM people GROUP BY 9
SELECT id FROM people a, people b
SELECT id FROM people, people
SELECT id i FROM people WHERE people.id = 1 -- the end
SELECT id /* in between */ FROM people # the end
SELECT id FROM people WHERE id = 1 --1
SELECT `id`FROM`people`WHERE`id`=1
""",
  "errors": """
SELECT name, FROM people
SELECT name FROM "people"
SELECT `name` FROM 'people'
SELEC 1
SELECT
SELECT FROM people
SELECT id people FROM
SELECT * FROM people WHERE
SELECT * FROM people ORDER id
SELECT COUNT( * ) FROM people
SELECT MAX(id, age) FROM people
SELECT NOPE(1)
SELECT MAX(COUNT(*)) FROM people
SELECT id FROM people WHERE COUNT(*) > 1
SELECT id FROM people GROUP BY COUNT(*)
SELECT (SELECT id, name FROM people LIMIT 1)
SELECT (SELECT id FROM people)
SELECT id FROM people WHERE id = (SELECT id FROM people)
SELECT id FROM people WHERE id IN (SELECT id, name FROM people)
SELECT id FROM people UNION SELECT id, name FROM people
SELECT 1 FROM people WHERE id = 1 GROUP BY
SELECT id FROM people WHERE name = 'Dan O'Neil'
SELECT id FROM people WHERE name LIKE
SELECT * FROM (SELECT 1)
SELECT id FROM (SELECT id FROM people) WHERE id = 1
SELECT TOP 1 id FROM people
SELECT id FROM people FETCH FIRST 1 ROWS ONLY
SELECT id::int FROM people
SELECT id FROM people WHERE name ILIKE 'a%'
SELECT [id] FROM people
SELECT id FROM people WHERE id == 1
SELECT STRFTIME('%Y', joined) FROM people
SELECT TO_DATE(joined, 'YYYY') FROM people
SELECT NVL(age, 0) FROM people
SELECT LEN(name) FROM people
SELECT CAST(age AS INTEGER) FROM people
SELECT CAST(age AS INT) FROM people
SELECT CAST(age AS FLOAT) FROM people WHERE id = 1
SELECT CAST(age AS TEXT) FROM people
SELECT CAST(age AS UNSIGNED INTEGER) FROM people WHERE id = 1
BOGUS
""",
  "show": """
SHOW TABLES
SHOW TABLES LIKE 'peo%'
SHOW FULL TABLES
SHOW COLUMNS FROM people
SHOW COLUMNS FROM nope
SHOW FIELDS FROM people
SHOW COLUMNS FROM people LIKE 'n%'
DESCRIBE people
DESC people
DESC people name
DESCRIBE nope
DESCRIBE `Paid Bills`
EXPLAIN people
SHOW INDEX FROM people
SHOW KEYS FROM people
SHOW WARNINGS
SHOW ERRORS
SHOW VARIABLES LIKE 'nope'
SHOW TRIGGERS
SHOW VIEWS
SHOW SCHEMA
""",
  "information_schema": """
SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME
SELECT table_name, table_type FROM INFORMATION_SCHEMA.TABLES WHERE table_schema = DATABASE() ORDER BY 1
SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'nope'
SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_NAME = 'people' AND TABLE_SCHEMA = DATABASE()
SELECT column_name, data_type, ordinal_position, is_nullable, column_type FROM information_schema.columns WHERE table_name = 'people' ORDER BY ordinal_position
SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'Paid Bills' AND COLUMN_NAME LIKE '%No'
SELECT c.TABLE_NAME, COUNT(*) FROM information_schema.COLUMNS c WHERE c.TABLE_SCHEMA = DATABASE() GROUP BY c.TABLE_NAME ORDER BY 1
SELECT CHARACTER_MAXIMUM_LENGTH, COLUMN_KEY, EXTRA FROM information_schema.COLUMNS WHERE TABLE_NAME = 'people' AND COLUMN_NAME = 'id'
SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = DATABASE()
SELECT * FROM information_schema.KEY_COLUMN_USAGE WHERE TABLE_NAME = 'people'
SELECT CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS WHERE TABLE_SCHEMA = DATABASE()
SELECT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_NAME = 'people'
SELECT TABLE_NAME FROM information_schema.VIEWS WHERE TABLE_SCHEMA = DATABASE()
SELECT nope FROM information_schema.TABLES
SELECT information_schema.tables.table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1
SELECT 1 FROM information_schema.nope
SELECT DATABASE(), SCHEMA()
SELECT t.TABLE_NAME FROM information_schema.TABLES AS t WHERE t.TABLE_TYPE = 'BASE TABLE' AND t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME LIKE 'p%' ORDER BY t.TABLE_NAME
""",
  "session": """
SET @a = 1
SET NAMES utf8mb4
SET sql_mode = ''
SET autocommit = 0
BEGIN
START TRANSACTION
COMMIT
ROLLBACK
SELECT LAST_INSERT_ID()
SELECT CONNECTION_ID() > 0
SELECT VERSION() LIKE '%.%'
SELECT CURRENT_USER() LIKE '%@%'
""",
  "windows": """
SELECT id, ROW_NUMBER() OVER (ORDER BY id DESC) FROM people ORDER BY id
SELECT id, RANK() OVER (ORDER BY age + 0) FROM people ORDER BY id
SELECT id, DENSE_RANK() OVER (ORDER BY city) FROM people ORDER BY id
SELECT id, SUM(id) OVER (PARTITION BY city) FROM people ORDER BY id
SELECT id, COUNT(*) OVER () FROM people ORDER BY id
SELECT id, LAG(id) OVER (ORDER BY id + 0), LEAD(id) OVER (ORDER BY id + 0) FROM people ORDER BY id
SELECT id, FIRST_VALUE(name) OVER (ORDER BY id + 0) FROM people ORDER BY id
SELECT id, AVG(id) OVER (ORDER BY id + 0 ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM people ORDER BY id
""",
}
_WRITES = {
  "insert": """
INSERT INTO people VALUES ('7', 'Eve', 'Bonn', '30', '2022-01-01', NULL)
INSERT INTO people VALUES (7, 'Eve', 'Bonn', 30.50, '2022-01-01', '')
INSERT INTO people (id, name) VALUES ('7', 'Eve')
INSERT INTO people (id, name) VALUES (7, 'Eve'), (8, 'Fay')
INSERT people (id) VALUE (7)
INSERT INTO people SET id = 7, name = 'Eve'
INSERT INTO people (id, name) SELECT id, name FROM people WHERE id < 3
INSERT INTO people (id, name) VALUES ('7', "O'Hara"), ('8', 'O''Hara'), ('9', 'O\\'Hara'), ('10', 'a\\\\b')
INSERT INTO people (id, name) VALUES ('7', '  spaces '), ('8', 'Ünïcode'), ('9', '日本')
INSERT INTO people (id) VALUES (DEFAULT)
INSERT INTO people () VALUES ()
INSERT INTO people (id, name) VALUES ('7')
INSERT INTO people VALUES ('7')
INSERT INTO people (nope) VALUES ('7')
INSERT INTO nope VALUES ('7')
INSERT INTO people (id, id) VALUES (1, 2)
INSERT INTO people (id) VALUES ((SELECT MAX(id + 0) + 1 FROM people))
INSERT IGNORE INTO people (id) VALUES (7)
INSERT INTO people (id) VALUES (7) ON DUPLICATE KEY UPDATE id = 8
REPLACE INTO people (id) VALUES (7)
INSERT INTO people(id)VALUES(7);
INSERT INTO people (id, joined) VALUES (7, DATE('2020-01-02 03:04:05'))
INSERT INTO `Paid Bills` VALUES ('D-1', 5, 12.50, 'yes')
INSERT INTO `Paid Bills` (`Bill No`, "amount") VALUES ('D-1', 5)
INSERT INTO `Paid Bills` ('Bill No') VALUES ('D-1')
INSERT INTO people (id) VALUES (NULL), (''), (0)
INSERT INTO people (id) VALUES (CONCAT('a', 1)), (UPPER('x')), (LENGTH('abc'))
""",
  "update": """
UPDATE people SET age = '8' WHERE id = 1
UPDATE people SET age = 8 WHERE name = 'ANNA REED'
UPDATE people SET age = age + 1
UPDATE people SET age = age + 1 WHERE age > 9
UPDATE people SET age = age * 1.5, note = age
UPDATE people SET age = age / 2 WHERE id = 2
UPDATE people SET age = ROUND(age / 3, 2) WHERE id = 2
UPDATE people SET age = NULL, city = '' WHERE id = 1
UPDATE people SET name = CONCAT(name, '!'), note = CONCAT(name, '?')
UPDATE people SET name = UPPER(name) WHERE city LIKE 'r%'
UPDATE people SET note = REPLACE(note, ',', '')
UPDATE people SET city = 'X' ORDER BY id DESC LIMIT 2
UPDATE people SET city = 'X' LIMIT 2
UPDATE people SET city = 'X' LIMIT 1, 2
UPDATE people p SET p.city = 'X' WHERE p.id = 1
UPDATE people SET people.city = 'X' WHERE people.id = 1
UPDATE people SET nope = 1
UPDATE people SET city = nope
UPDATE people SET city = 'X' WHERE nope = 1
UPDATE nope SET city = 'X'
UPDATE people SET city = (SELECT MAX(amount) FROM `Paid Bills`)
UPDATE people SET city = 'X' WHERE id IN (SELECT `person id` FROM `Paid Bills`)
UPDATE people SET city = 'X' WHERE id = (SELECT MAX(id) FROM people)
UPDATE people SET city = 'X' WHERE city = 'nowhere'
UPDATE people SET city = CASE WHEN age > 9 THEN 'old' ELSE 'young' END
UPDATE people SET city = IF(age > 9, 1, 0)
UPDATE people SET city = city = 'Rome'
UPDATE people SET city = 'X' AND age = 3
UPDATE people SET age = CAST(age AS SIGNED)
UPDATE people SET age = age DIV 2, id = -id
UPDATE people SET age = 0.1 + 0.2, note = 1e3, city = 1.50
UPDATE `Paid Bills` SET paid = 'yes' WHERE `Bill No` = 'a-2'
UPDATE `Paid Bills` SET 'paid' = 'yes'
UPDATE people SET age = DEFAULT WHERE id = 1
UPDATE people SET age = LENGTH(name), note = COUNT(*)
UPDATE people SET joined = DATE_ADD(joined, INTERVAL 1 DAY) WHERE id = 1
""",
  "delete": """
DELETE FROM people WHERE id = 1
DELETE FROM people WHERE city = 'ROME'
DELETE FROM people WHERE age < 10
DELETE FROM people WHERE name LIKE 'anna%'
DELETE FROM people
DELETE FROM people ORDER BY id DESC LIMIT 2
DELETE FROM people LIMIT 2
DELETE FROM people WHERE id IN (SELECT `person id` FROM `Paid Bills`)
DELETE FROM people WHERE id = (SELECT MAX(id) FROM people)
DELETE p FROM people p JOIN `Paid Bills` b ON p.id = b.`person id`
DELETE people FROM people WHERE id = 1
DELETE FROM p USING people p WHERE p.id = 1
DELETE FROM people WHERE nope = 1
DELETE FROM nope
DELETE people WHERE id = 1
DELETE * FROM people
TRUNCATE people
TRUNCATE TABLE nope
""",
  "tables": """
CREATE TABLE t (a INT, b TEXT)
CREATE TABLE people (a INT)
CREATE TABLE IF NOT EXISTS people (a INT)
CREATE TABLE t AS SELECT * FROM people
CREATE TABLE t LIKE people
CREATE TEMPORARY TABLE t (a INT)
CREATE VIEW v AS SELECT name FROM people
CREATE TABLE t (a INT PRIMARY KEY AUTO_INCREMENT, b VARCHAR(10) NOT NULL DEFAULT 'x', c DECIMAL(5,2))
CREATE TABLE t (a INT, a INT)
CREATE TABLE t ()
DROP TABLE people
DROP TABLE nope
DROP TABLE IF EXISTS nope
ALTER TABLE people ADD COLUMN z TEXT
ALTER TABLE people ADD z INT DEFAULT 3
ALTER TABLE people DROP COLUMN note
ALTER TABLE people RENAME TO p
ALTER TABLE people RENAME COLUMN note TO remark
ALTER TABLE nope ADD COLUMN z TEXT
ALTER TABLE people ADD COLUMN name TEXT
""",
}


def _listed(kinds: dict[str, str]) -> list[tuple[str, str]]:
  return [
    (kind, sql)
    for kind, lines in kinds.items()
    for sql in lines.strip().split("\n")
  ]


# Further statements, whose outcomes differ, by reason.
DIFFERENCES = {
  """MySQL 8.0.19 takes an alias in DELETE of one table; MariaDB does not.""": """
DELETE FROM people p WHERE p.id = 1
""",
  """MySQL 8's utf8mb4_0900_ai_ci does not pad with blanks, and has ß as ss.""": """
SELECT 'a' = 'A', 'a' = 'a ', 'é' = 'e', 'ß' = 'ss', 'a' < 'B', 'Z' > 'a'
""",
  """Messages, privileges and collation of MariaDB that MySQL 8 does not have.""": """
SELECT id FROM other.people
SHOW FULL COLUMNS FROM people
USE nope
DROP VIEW nope
ALTER TABLE people DROP COLUMN nope
""",
  """REGEXP is missing: nothing in SQLite could stop a slow pattern.""": """
SELECT name FROM people WHERE name REGEXP '^a'
SELECT name FROM people WHERE name RLIKE 'reed$'
SELECT name FROM people WHERE name NOT REGEXP '[aeiou]'
SELECT 'abc' REGEXP 'b+', 'ABC' REGEXP 'b', 'a\\nb' REGEXP 'a.b'
SELECT REGEXP_REPLACE('a1b2', '[0-9]', ''), REGEXP_SUBSTR('ab12', '[0-9]+')
""",
  """SQLite before 3.44 has no order within an aggregate.""": """
SELECT GROUP_CONCAT(city ORDER BY city) FROM people
SELECT GROUP_CONCAT(DISTINCT city ORDER BY city SEPARATOR '; ') FROM people
""",
  """Statements that are not translated: the reply is 1064 or an unknown name.""": """
SELECT name FROM people WHERE age > ALL (SELECT amount FROM `Paid Bills`)
SELECT name FROM people WHERE age > ANY (SELECT amount FROM `Paid Bills`)
SELECT 5 & 3, 5 | 3, 5 ^ 3, ~0, 1 << 4, 256 >> 2
SELECT (1, 2) = (1, 2), (1, 2) < (1, 3), ROW(1, 'a') = ROW(1, 'A')
CALL nope()
EXECUTE nope
SHOW CREATE TABLE nope
DO 1
SAVEPOINT s
ROLLBACK TO s
INSERT INTO people (id, name) VALUES (7, name)
INSERT INTO people (id, name) VALUES (7, id)
UPDATE people, `Paid Bills` SET city = 'X' WHERE id = `person id`
UPDATE people JOIN `Paid Bills` ON id = `person id` SET city = amount
CREATE INDEX i ON people (name(10))
DROP TABLE people, `Paid Bills`
ALTER TABLE people CHANGE note remark TEXT
ALTER TABLE people MODIFY age INT
RENAME TABLE people TO p
CREATE DATABASE other
DROP DATABASE other
""",
  """Errors in the form of a call: the reply is another error or rows.""": """
SELECT QUOTE('it''s'), CONCAT(), TO_BASE64('abc')
SELECT COUNT (*) FROM people
SELECT SUM (id) FROM people
SELECT LENGTH()
SELECT LENGTH('a', 'b')
SELECT SUBSTRING('a')
SELECT IF(1, 2)
SELECT CAST(age AS VARCHAR) FROM people
""",
  """Aliases are case-sensitive in MySQL and not in SQLite.""": """
SELECT p.`name` FROM people p WHERE P.id = 1
""",
  """SQLite takes a group's values from the row of its MAX.""": """
SELECT city, MAX(id) FROM people GROUP BY city HAVING MAX(id) > 2 ORDER BY MAX(id)
""",
  """Bytes, times of day, numbers out of range, and digits of decimals as text.""": """
SELECT SQRT(16), POW(2, 10), POWER(2, 0.5), EXP(0), LN(1), LOG(10, 100), LOG10(1000), LOG2(8)
SELECT SQRT(-1), LN(0), POW(0, -1)
SELECT PI(), TRUNCATE(1.999, 1), TRUNCATE(-1.999, 0), TRUNCATE(1999, -2)
SELECT 9223372036854775807, 18446744073709551615, 1e400
SELECT 9223372036854775807 + 1
SELECT 1.0, 1.50, .5, 1., 1e3, 1.5e-3, 007, 0x41, X'41', b'101'
SELECT CAST('12abc' AS SIGNED), CAST('x' AS SIGNED), CAST(2.7 AS SIGNED), CAST(-1 AS UNSIGNED)
SELECT name FROM people WHERE name LIKE BINARY 'anna%'
SELECT LPAD('7', 3, '0'), RPAD('a', 3, '.'), LPAD('abcd', 2, '0'), REPEAT('ab', 3), REVERSE('abc'), SPACE(3), CHAR(65, 66)
SELECT CONCAT('a', TRUE, NULL IS NULL), CONCAT(1 / 4), CONCAT(1.50), CONCAT(10 / 4)
SELECT DATE('2020-05-01 10:20:30'), TIME('2020-05-01 10:20:30'), HOUR('10:20:30'), MINUTE('10:20:30'), SECOND('10:20:30')
SELECT QUARTER('2020-05-01'), WEEK('2020-05-01'), LAST_DAY('2020-02-01'), TO_DAYS('2020-05-01')
SELECT CAST('2020-05-01' AS DATE), CAST('2020-05-01 10:00:00' AS DATETIME), DATE '2020-05-01'
INSERT INTO people (id, age) VALUES (1 + 1, 7 / 2)
INSERT INTO people (id, age) VALUES (1.0, 1e2), (007, -0), (TRUE, 'x' = 'X')
UPDATE people SET age = 10 / 4, id = 10 / 5, note = 1.10 + 1
""",
  """Missing functions and variables.""": """
SELECT BIT_AND(id), BIT_OR(id), BIT_XOR(id) FROM people
SELECT LENGTH('é'), CHAR_LENGTH('é'), CHARACTER_LENGTH('abc'), OCTET_LENGTH('é'), BIT_LENGTH('a')
SELECT ASCII('A'), ORD('A'), HEX('A'), UNHEX('41'), MD5('a'), SHA1('a'), CRC32('a')
SELECT UNIX_TIMESTAMP('1970-01-02') > 0, FROM_UNIXTIME(0) IS NOT NULL
SELECT MAKEDATE(2020, 32), SEC_TO_TIME(3661), TIME_TO_SEC('01:01:01')
SELECT @nope
SELECT @x := 5
SELECT FOUND_ROWS()
SELECT SLEEP(0)
""",
}
EQUAL = _listed(_READS | _WRITES)
DIFFERENT = _listed(DIFFERENCES)
