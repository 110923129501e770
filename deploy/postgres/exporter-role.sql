-- The exporter's role: it may select the public columns of a ledger and nothing else.
-- Run it (again does no harm) as the owner of the ledger's tables, after the first service or worker has made them, and
-- give the role a password or a certificate of your own: ALTER ROLE evertally_exporter PASSWORD '...';
DO $$ BEGIN
  CREATE ROLE evertally_exporter LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE CONNECTION LIMIT 5;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
ALTER ROLE evertally_exporter SET default_transaction_read_only = on;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO evertally_exporter;
GRANT SELECT ON meta TO evertally_exporter;
GRANT SELECT (name, definition, cap_main, cap_epsilon, cap_delta, main, epsilon, delta)
  ON scope TO evertally_exporter;
GRANT SELECT (stream_pk, name) ON stream TO evertally_exporter;
GRANT SELECT (incarnation_pk, stream_pk, incarnation, shards, descriptor) ON incarnation TO evertally_exporter;
GRANT SELECT (incarnation_pk, position, key_name, key_index) ON incarnation_key TO evertally_exporter;
GRANT SELECT (incarnation_pk, shard, t, published_t) ON head TO evertally_exporter;
GRANT SELECT (incarnation_pk, t, key_index, shard, value, stderr, tick_end_ms) ON released TO evertally_exporter;
