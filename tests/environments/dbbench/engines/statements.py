"""Statements in many forms, about one table `t a`."""

# Statements that SQLite must answer, and carry out, as MariaDB does.
STATEMENTS = """
SELECT * FROM `t a` WHERE city = 'OSLO'
SELECT name FROM `t a` WHERE age > 9
SELECT name FROM `t a` WHERE age > '9'
SELECT name FROM `t a` WHERE age = 128.0
SELECT name FROM `t a` WHERE age IN (7, 45)
SELECT name FROM `t a` WHERE age BETWEEN 8 AND 50
SELECT name FROM `t a` WHERE note = 3
SELECT SUM(age), AVG(age), MAX(age), MIN(age), COUNT(*) FROM `t a`
SELECT SUM(age + 0), AVG(age * 2), MAX(age + 0) FROM `t a`
SELECT SUM(CAST(age AS SIGNED)), SUM(CAST(age AS DECIMAL(10,2))) FROM `t a`
SELECT age / 2, 7 / 2, age DIV 2 FROM `t a`
SELECT name FROM `t a` ORDER BY age DESC
SELECT name FROM `t a` ORDER BY age + 0 DESC, name
SELECT name FROM `t a` ORDER BY CAST(age AS UNSIGNED) LIMIT 1
SELECT name FROM `t a` WHERE name LIKE 'anna%'
SELECT city, COUNT(*) FROM `t a` GROUP BY city ORDER BY COUNT(*) DESC, city
SELECT DISTINCT city FROM `t a`
SELECT COUNT(DISTINCT city) FROM `t a`
SELECT CONCAT(name, ' - ', city) FROM `t a` LIMIT 2
SELECT IF(age > 10, 'old', 'young') FROM `t a`
SELECT IFNULL(NULL, 'x'), COALESCE(NULL, 2)
SELECT CASE WHEN age > 10 THEN 1 ELSE 0 END FROM `t a`
SELECT REPLACE(note, ',', '') + 0 FROM `t a`
SELECT UPPER(name), LOWER(city), TRIM('  a ') FROM `t a`
SELECT LEFT(name, 3), RIGHT(name, 2), SUBSTRING(name, 2, 3) FROM `t a`
SELECT SUBSTRING_INDEX(name, ' ', 1), CONCAT_WS('-', city, age) FROM `t a`
SELECT ROUND(AVG(age), 2), ROUND(7.456, 1), ABS(-3), FLOOR(2.7) FROM `t a`
SELECT "double", 'it''s', 'a\\'b'
SELECT name FROM `t a` WHERE LOWER(city) = 'Rome'
SELECT name FROM `t a` WHERE city <> 'rome'
SELECT name FROM `t a` WHERE name = 'elan'
SELECT name FROM `t a` WHERE note IS NULL
SELECT name FROM `t a` WHERE age = (SELECT MAX(age) FROM `t a`)
SELECT name FROM `t a` WHERE age + 0 > '9'
SELECT name FROM `t a` WHERE age > (SELECT AVG(age) FROM `t a`)
SELECT a.name, b.name FROM `t a` a JOIN `t a` b ON a.city = b.city ORDER BY 1, 2
SELECT city, SUM(age) s FROM `t a` GROUP BY city HAVING s > 50 ORDER BY s
SELECT name FROM `t a` UNION SELECT city FROM `t a` ORDER BY 1
SELECT -age FROM `t a`
SELECT COUNT(*) > 3, 1 = 1, NOT 1, 'a' = 'A' FROM `t a`
SELECT name FROM `t a` WHERE NOT age > 9 OR city LIKE '%o%'
SELECT name AS n FROM `t a` WHERE city != 'Oslo' ORDER BY n LIMIT 1 OFFSET 1
SELECT name FROM `t a` LIMIT 1, 2
SELECT MAX(age) - MIN(age), SUM(age) / COUNT(*) FROM `t a`
SELECT COUNT(*) / 2, COUNT(age) * 1.5, AVG(7), SUM(2), SUM(1.5) FROM `t a`
SELECT CAST(age AS CHAR), CAST('12.7' AS SIGNED) FROM `t a`
SELECT YEAR('2020-05-01'), MONTH('2020-05-01'), MOD(7, 3), POWER(2, 3)
SELECT name, FROM `t a`
SELECT name FROM "t a"
SELECT `name` FROM 't a'
SELECT * FROM nope
SELECT LENGTH(name), CHAR_LENGTH(name), UPPER(name) FROM `t a`
SELECT LENGTH(LEFT(name, 1)), RIGHT(CONCAT(city, age), 4) FROM `t a`
SELECT FLOOR(note), CEIL(age), ABS(note), POW(age, 2), SIGN(note) FROM `t a`
SELECT LPAD(age, 5, '0'), RPAD(note, 3, '.'), REPEAT(city, 2) FROM `t a`
SELECT FORMAT(age, 2), TRUNCATE(age / 3, 1), FORMAT(1234567.891, 1) FROM `t a`
SELECT STR_TO_DATE('May 3, 2001', '%M %d, %Y'), DATE('2001-05-03 10:00:00')
SELECT DATE_FORMAT('2001-05-03', '%b %e %Y'), DATEDIFF('2001-05-03', '2001-1-1')
SELECT name FROM `t a` WHERE name LIKE '%e%' ORDER BY name
SELECT note FROM `t a` ORDER BY note
SELECT MAX(note), MIN(note) FROM `t a` WHERE note > ','
SELECT name FROM `t a` WHERE note IN (3, 'x') OR note NOT IN ('x', 3, -3)
SELECT name FROM `t a` ORDER BY 7
SELECT FIELD(city, 'rome', 'oslo') FROM `t a`
UPDATE `t a` SET age = CAST(age AS DECIMAL(10,2))
UPDATE `t a` SET age = 'now', note = CONCAT(age, '!')
UPDATE `t a` SET note = LENGTH(LEFT(name, 3)), city = LOCATE('a', name)
INSERT INTO `t a` VALUES ('x')
INSERT INTO `t a` (name, age) VALUES ('Z', 1.10), ('Y', 007)
INSERT INTO `t a` SET name = 'Q', age = 3
INSERT INTO `t a` SELECT * FROM `t a` WHERE age > 100
UPDATE `t a` SET age = age + 1
UPDATE `t a` SET age = age + 0.5 WHERE age + 0 > 7
UPDATE `t a` SET age = age * 1.1
UPDATE `t a` SET age = age / 2
UPDATE `t a` SET age = 12.50, note = -3, city = NULL WHERE name = 'anna reed'
UPDATE `t a` SET note = CONCAT(name, '!') WHERE age > 9
UPDATE `t a` SET age = 5 WHERE city = 'Rome' LIMIT 1
DELETE FROM `t a` WHERE age < 10
DELETE FROM `t a` ORDER BY age + 0 LIMIT 1
DELETE FROM `t a` WHERE name = 'elan'
TRUNCATE TABLE `t a`
ALTER TABLE `t a` ADD COLUMN z TEXT
DROP TABLE `t a`
SHOW TABLES
DESCRIBE `t a`
SHOW COLUMNS FROM `t a`
""".strip().split("\n")
