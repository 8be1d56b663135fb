-- +goose Up
-- A row's data is the domain value as JSON and the only source of truth but for
-- the columns that SQL itself changes (checkpoints.parent). The other columns
-- repeat what is filtered, joined or ordered by. Times are nanoseconds since
-- 1970, UTC.
--
-- A commit writes every page that it touched, so an index costs each checkpoint
-- some 15 microseconds: what only rare calls ask for is scanned for instead.
CREATE TABLE sandboxes (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  state      TEXT NOT NULL,
  image_id   TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  labels     TEXT NOT NULL,
  data       TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sandboxes_by_time ON sandboxes (created_at, id);

CREATE TABLE checkpoints (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  sandbox_id TEXT NOT NULL,
  parent     TEXT NOT NULL,
  image_id   TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  labels     TEXT NOT NULL,
  data       TEXT NOT NULL
);
CREATE INDEX checkpoints_by_time ON checkpoints (created_at, id);
CREATE INDEX checkpoints_by_sandbox ON checkpoints (sandbox_id, created_at, id);
CREATE INDEX checkpoints_by_parent ON checkpoints (parent) WHERE parent <> '';
CREATE INDEX checkpoints_by_name ON checkpoints (name) WHERE name <> '';

CREATE TABLE images (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  data       TEXT NOT NULL
);
CREATE UNIQUE INDEX images_by_name ON images (name) WHERE name <> '';
CREATE INDEX images_by_time ON images (created_at, id);

CREATE TABLE processes (
  sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
  id         TEXT NOT NULL,
  finished   INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  data       TEXT NOT NULL,
  PRIMARY KEY (sandbox_id, id)
);
CREATE INDEX processes_by_time ON processes (sandbox_id, finished, started_at, id);

CREATE TABLE layers (
  id   TEXT PRIMARY KEY,
  data TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE operations (
  id         TEXT PRIMARY KEY,
  started_at INTEGER NOT NULL,
  data       TEXT NOT NULL
) WITHOUT ROWID;

-- The newest event is never deleted, so the next number is always a new one.
CREATE TABLE events (
  seq  INTEGER PRIMARY KEY,
  data TEXT NOT NULL
);

CREATE TABLE counters (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('project', 0);

-- One row per label, kept by the triggers below: whatever changes an owner
-- changes its labels with it.
CREATE TABLE labels (
  kind  TEXT NOT NULL,
  owner TEXT NOT NULL,
  key   TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (kind, owner, key)
) WITHOUT ROWID;
CREATE INDEX labels_by_key ON labels (kind, key, value, owner);

-- +goose StatementBegin
CREATE TRIGGER sandbox_labels_insert AFTER INSERT ON sandboxes WHEN new.labels <> '{}' BEGIN
  INSERT INTO labels SELECT 'sandbox', new.id, key, value FROM json_each(new.labels);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER sandbox_labels_update AFTER UPDATE OF labels ON sandboxes WHEN new.labels <> old.labels BEGIN
  DELETE FROM labels WHERE kind = 'sandbox' AND owner = old.id;
  INSERT INTO labels SELECT 'sandbox', new.id, key, value FROM json_each(new.labels);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER sandbox_labels_delete AFTER DELETE ON sandboxes BEGIN
  DELETE FROM labels WHERE kind = 'sandbox' AND owner = old.id;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER checkpoint_labels_insert AFTER INSERT ON checkpoints WHEN new.labels <> '{}' BEGIN
  INSERT INTO labels SELECT 'checkpoint', new.id, key, value FROM json_each(new.labels);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER checkpoint_labels_update AFTER UPDATE OF labels ON checkpoints WHEN new.labels <> old.labels BEGIN
  DELETE FROM labels WHERE kind = 'checkpoint' AND owner = old.id;
  INSERT INTO labels SELECT 'checkpoint', new.id, key, value FROM json_each(new.labels);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER checkpoint_labels_delete AFTER DELETE ON checkpoints BEGIN
  DELETE FROM labels WHERE kind = 'checkpoint' AND owner = old.id;
END;
-- +goose StatementEnd
