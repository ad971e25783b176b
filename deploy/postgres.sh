#!/bin/sh
# Run once, where the database is made. Segue's role owns its database and is no superuser; the superuser has no password
# and so comes in only from within the container.
set -eu
psql --no-psqlrc -v ON_ERROR_STOP=1 -v password="$POSTGRES_PASSWORD" --username postgres --dbname postgres <<'SQL'
CREATE ROLE segue LOGIN PASSWORD :'password';
CREATE DATABASE segue OWNER segue;
ALTER ROLE postgres PASSWORD NULL;
\connect segue
CREATE EXTENSION vector;
SQL
