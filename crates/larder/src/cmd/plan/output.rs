//! Output files, which are opened before the work and written after it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;

use crate::outcome::usage;

/// An output file. Its old content stays until the new content is written.
pub(super) struct OutputFile<'p> {
    path: &'p Path,
    file: File,
    /// Whether this process created the file.
    created: bool,
}

impl<'p> OutputFile<'p> {
    /// Opens a file, or creates it.
    pub(super) fn open(path: &'p Path) -> anyhow::Result<Self> {
        let created = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file, created })
    }

    /// Opens a file that must not exist, unless `force` is set. Terminals and pipes are accepted.
    pub(super) fn open_new(path: &'p Path, force: bool) -> anyhow::Result<Self> {
        let holds_text = std::fs::metadata(path).is_ok_and(|about| about.is_file());
        if holds_text && !force {
            let path = path.display();
            return Err(usage(format!(
                "cannot write {path}: the file exists (name another file, or add --force to replace it)"
            )));
        }
        Self::open(path)
    }

    /// Replaces the content.
    pub(super) fn write(mut self, text: &str) -> anyhow::Result<()> {
        let regular = self.file.metadata().is_ok_and(|about| about.is_file());
        let emptied = if regular { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        self.created = false;
        // Messages to a closed stderr are dropped.
        let _ = writeln!(io::stderr(), "written: {}", self.path.display());
        Ok(())
    }

    /// Leaves the file unchanged.
    pub(super) fn leave(self) -> &'p Path {
        self.path
    }
}

impl Drop for OutputFile<'_> {
    fn drop(&mut self) {
        if self.created {
            // If the empty file cannot be removed, it stays.
            let _ = std::fs::remove_file(self.path);
        }
    }
}
