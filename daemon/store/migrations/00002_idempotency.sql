-- +goose Up
-- status is 0 while the request that reserved the key is still running.
CREATE TABLE idempotency (
  scope        TEXT NOT NULL,
  key          TEXT NOT NULL,
  request_hash TEXT NOT NULL,
  status       INTEGER NOT NULL,
  header       TEXT NOT NULL,
  body         BLOB,
  expires_at   INTEGER NOT NULL,
  PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);
