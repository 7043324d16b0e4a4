//! Links in the README, the book and the other pages lead to files and headings that are there.

use std::fs;
use std::path::{Path, PathBuf};

/// What in a folder, and in those in it, has names that end so.
pub fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let all = entries.flat_map(|entry| match entry.path() {
        path if path.is_dir() => files(&path, end),
        path => vec![path],
    });
    all.filter(|path| path.extension().is_some_and(|found| found == end))
        .collect()
}

/// Without what stands in fences: code.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    text.split("```").step_by(2).collect()
}

/// By the name that mdBook and GitHub give a heading.
fn has_heading(page: &Path, name: &str) -> bool {
    let known = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    let is_named = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let anchor: String = heading.chars().filter(known).collect();
        line.starts_with('#') && anchor.replace(' ', "-") == name
    };
    prose(page).lines().any(is_named)
}

/// What is wrong with a link of a page, if something is.
fn problem(page: &Path, link: &str, book: &Path) -> Option<&'static str> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_path_buf(),
        path => page.parent()?.join(path),
    };
    let Ok(target) = target.canonicalize() else {
        return Some("no such file");
    };
    // The built book has no other files.
    if page.starts_with(book) && !target.starts_with(book) {
        return Some("it leaves the book");
    }
    (!heading.is_empty() && !has_heading(&target, heading)).then_some("no such heading")
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().unwrap();
    let book = root.join("docs/src");
    let mut all = vec![root.join("CONTRIBUTING.md")];
    all.push(root.join("crates/burn-amp/README.md"));
    for folder in ["docs", "examples", "kernels-cubecl/benches"] {
        all.extend(files(&root.join(folder), "md"));
    }
    let (mut links, mut problems) = (0, Vec::new());
    for page in &all {
        let text = prose(page);
        let rests = text.split("](").skip(1);
        let targets = rests.filter_map(|rest| rest.split(')').next());
        for link in targets.filter(|link| !link.contains("://")) {
            links += 1;
            let found = problem(page, link, &book);
            problems
                .extend(found.map(|problem| format!("{}: `{link}`: {problem}", page.display())));
        }
    }
    assert!(links > 100, "{links} links were found");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
