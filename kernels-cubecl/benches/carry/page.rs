//! Makes one page of what `run.sh` has so far: all of it as JSON, and tables for `docs/src/performance.md`.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// `CARRY_WORK` is the folder with logs and rows, and `CARRY_OUT` the JSON file; the tables are beside it.
#[test]
#[ignore = "a step of run.sh"]
fn page() {
    let of = |name| PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("{name} is missing")));
    let (work, out) = (of("CARRY_WORK"), of("CARRY_OUT"));
    let found = Found::read(&work);
    let all = serde_json::to_string_pretty(&found.json()).expect("JSON");
    for (path, text) in [(out.with_extension("md"), found.tables()), (out, all)] {
        // Whole whenever it is read.
        let beside = path.with_extension("tmp");
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The lines of a file as columns; none if it is not there.
fn columns(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| line.split('\t').map(str::to_owned).collect();
    text.lines().map(line).collect()
}

#[derive(Default)]
struct Found {
    /// What is known of the machine, and its value.
    facts: Vec<(String, String)>,
    /// Name, way, code, seconds, passed, failed, result.
    steps: Vec<Vec<String>>,
    /// Ends of the logs of steps that failed.
    logs: BTreeMap<String, String>,
    /// What benches have written, by step and way.
    benches: BTreeMap<String, Value>,
    digits: Option<String>,
    kernels: Vec<Kernel>,
}

impl Found {
    fn read(work: &Path) -> Self {
        let facts = columns(&work.join("facts")).into_iter();
        let fact = |line: Vec<String>| Some((line.first()?.clone(), line.get(1)?.clone()));
        let mut found = Self {
            facts: facts.filter_map(fact).collect(),
            steps: columns(&work.join("steps")),
            ..Self::default()
        };
        found.steps.retain(|step| step.len() == 7);
        for step in &found.steps {
            let name = format!("{}.{}", step[0], step[1]);
            let log = fs::read(work.join(format!("{name}.log"))).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            if step[0] == "digits" {
                let at = log.rfind("run  ");
                let is_row = |line: &&str| !line.is_empty() && !line.starts_with("test ");
                let lines = at.map(|at| log[at..].lines().take_while(is_row));
                found.digits = lines.map(|lines| lines.collect::<Vec<_>>().join("\n"));
            }
            if let Ok(text) = fs::read_to_string(work.join(format!("{name}.json")))
                && let Ok(value) = serde_json::from_str(&text)
            {
                found.benches.insert(name.clone(), value);
            }
            if step[2] != "0" {
                let from = log.len().saturating_sub(3000);
                let from = (from..=log.len()).find(|at| log.is_char_boundary(*at));
                found.logs.insert(name, log[from.unwrap_or(0)..].to_owned());
            }
        }
        for way in ["llvm", "cpp"] {
            let logs = fs::read_dir(work.join("ptx").join(way));
            let logs = logs
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path());
            let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "log"));
            let texts = logs.filter_map(|path| fs::read_to_string(path).ok());
            let of_way =
                |(name, registers, spilled)| (format!("{name}, {way}"), registers, spilled);
            found
                .kernels
                .extend(texts.flat_map(|text| kernels(&text)).map(of_way));
        }
        found.kernels.sort();
        found.kernels.dedup();
        found
    }

    fn json(&self) -> Value {
        let step = |step: &Vec<String>| {
            let number = |at: usize| step[at].parse::<i64>().unwrap_or(-1);
            json!({
                "name": step[0], "way": step[1], "code": number(2), "seconds": number(3),
                "passed": number(4), "failed": number(5), "result": step[6],
            })
        };
        let kernel = |(name, registers, spilled): &Kernel| json!([name, registers, spilled]);
        json!({
            "facts": self.facts.iter().map(|(name, value)| json!([name, value])).collect::<Vec<_>>(),
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "logs of what failed": self.logs,
            "benches": self.benches,
            "digits": self.digits,
            "kernels, registers, bytes spilled": self.kernels.iter().map(kernel).collect::<Vec<_>>(),
        })
    }

    fn tables(&self) -> String {
        let mut page = String::from("## On this machine\n\n");
        let facts = self
            .facts
            .iter()
            .map(|(name, value)| format!("{name}: {value}"));
        writeln!(page, "{}.\n", facts.collect::<Vec<_>>().join("; ")).expect("a string");
        let sections = [
            ("What the device can do", self.device()),
            ("Passes over gradients, and optimizers", self.passes()),
            ("Registers", self.registers()),
            ("Training GPT-2", self.training()),
            ("The step of Adam", self.step()),
            (
                "Digits",
                self.digits
                    .as_ref()
                    .map(|table| format!("```text\n{table}\n```\n")),
            ),
            ("Tests", self.tests()),
        ];
        let mut missing = Vec::new();
        for (title, section) in sections {
            match section {
                Some(section) => writeln!(page, "### {title}\n\n{section}").expect("a string"),
                None => missing.push(title),
            }
        }
        if !missing.is_empty() {
            writeln!(page, "Not measured: {}.", missing.join("; ")).expect("a string");
        }
        page
    }

    /// The rows that steps of a name wrote, with the step's way.
    fn rows<'a>(&'a self, step: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let of = move |(name, bench): (&'a String, &'a Value)| {
            let way = name.strip_prefix(step)?.strip_prefix('.')?;
            Some((way, bench["rows"].as_array()?))
        };
        let all = self.benches.iter().filter_map(of);
        all.flat_map(|(way, rows)| rows.iter().map(move |row| (way, row)))
    }

    /// The row of torch's in which these have the same values.
    fn torch<'a>(&'a self, step: &'a str, same: &[(&str, &Value)]) -> Option<&'a Value> {
        let is_it = |row: &&Value| same.iter().all(|(name, value)| row[*name] == **value);
        self.rows(step).map(|(_, row)| row).find(is_it)
    }

    fn device(&self) -> Option<String> {
        let mut rows = Vec::new();
        for (way, row) in self.rows("device") {
            // CubeCL's f32 may be tf32; torch's both are beside it.
            let others = match (row["what"].as_str(), row["dtype"].as_str()) {
                (Some("product"), Some("f32")) => vec!["tf32", "f32"],
                (_, dtype) => vec![dtype.unwrap_or_default()],
            };
            let others = others.into_iter().filter_map(|dtype| {
                let same = [("what", &row["what"]), ("dtype", &json!(dtype))];
                let rate = number(self.torch("torch_device", &same)?, "rate")?;
                Some(format!("{dtype}: {}", digits(rate)))
            });
            rows.push(vec![
                text(&row["what"]),
                text(&row["dtype"]),
                text(&row["rounded_to"]),
                way.to_owned(),
                number(row, "rate").map(digits).unwrap_or_default(),
                others.collect::<Vec<_>>().join(", "),
            ]);
        }
        let header = [
            "",
            "dtype",
            "factors in",
            "by",
            "10^12 operations/s, 10^9 bytes/s",
            "torch",
        ];
        table(&header, &rows)
    }

    fn passes(&self) -> Option<String> {
        let all: Vec<(&str, &Value)> = ["gradients", "sets", "composed"]
            .iter()
            .flat_map(|step| self.rows(step))
            .collect();
        let mut sets: Vec<String> = Vec::new();
        let mut cells: BTreeMap<(String, String, String), BTreeMap<String, String>> =
            BTreeMap::new();
        for (way, row) in &all {
            let set = text(&row["set"]);
            if !sets.contains(&set) {
                sets.push(set.clone());
            }
            let key = (text(&row["op"]), text(&row["dtype"]), (*way).to_owned());
            cells
                .entry(key)
                .or_default()
                .insert(set, self.pass(row, way, &all));
        }
        let rows = cells.into_iter().map(|((op, dtype, way), mut of)| {
            let own = sets.iter().map(|set| of.remove(set).unwrap_or_default());
            [op, dtype, way].into_iter().chain(own).collect()
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let header = ["operation", "dtype", "by"]
            .into_iter()
            .chain(sets.iter().map(String::as_str));
        let table = table(&header.collect::<Vec<_>>(), &rows)?;
        Some(format!(
            "GB/s; of those of a copy; time / torch's.\n\n{table}"
        ))
    }

    /// GB/s, its share of the copy's, and the time over that of torch.
    fn pass(&self, row: &Value, way: &str, all: &[(&str, &Value)]) -> String {
        let same = |other: &Value, name: &str| other[name] == row[name];
        let is_copy =
            |other: &Value| other["op"] == "copy" && same(other, "set") && same(other, "dtype");
        let copy = all
            .iter()
            .find(|(other_way, other)| *other_way == way && is_copy(other));
        let rate = number(row, "gb_per_s").unwrap_or(f64::NAN);
        let share = copy.and_then(|(_, copy)| Some(rate / number(copy, "gb_per_s")?));
        let op = match row["op"].as_str().unwrap_or_default() {
            "unscale_in_place" => "unscale",
            "clip" => "unscale_clip",
            op => op,
        };
        let elements = number(row, "bytes");
        let torch = elements.and_then(|_| {
            let same = [
                ("set", &row["set"]),
                ("dtype", &row["dtype"]),
                ("op", &json!(op)),
            ];
            let torch = number(self.torch("torch_gradients", &same)?, "seconds")?;
            Some(number(row, "seconds")? / torch)
        });
        let mut cell = digits(rate);
        if let Some(share) = share {
            write!(cell, "; {:.0} %", 100.0 * share).expect("a string");
        }
        if let Some(torch) = torch {
            write!(cell, "; {torch:.2}").expect("a string");
        }
        cell
    }

    /// Of this project's kernels; those of one name are of several shapes.
    fn registers(&self) -> Option<String> {
        let is_ours = |kernel: &&Kernel| OURS.iter().any(|start| kernel.0.starts_with(start));
        let (ours, others): (Vec<_>, Vec<_>) = self.kernels.iter().partition(is_ours);
        let mut by_name: BTreeMap<(&str, &str), Vec<&Kernel>> = BTreeMap::new();
        for kernel in ours {
            let (name, way) = kernel.0.split_once(", ").unwrap_or((&kernel.0, ""));
            // Without the hash of the shape.
            let name = name.rsplit_once('_').map_or(name, |(name, _)| name);
            by_name.entry((name, way)).or_default().push(kernel);
        }
        let row = |((name, way), of): ((&str, &str), Vec<&Kernel>)| {
            let registers = || of.iter().map(|kernel| kernel.1);
            let (least, most) = (registers().min(), registers().max());
            let spilled = of.iter().map(|kernel| kernel.2).max();
            let number = |number: Option<u64>| number.unwrap_or(0).to_string();
            let registers = format!("{} to {}", number(least), number(most));
            vec![name.to_owned(), way.to_owned(), registers, number(spilled)]
        };
        let rows: Vec<Vec<String>> = by_name.into_iter().map(row).collect();
        let table = table(&["kernels", "by", "registers", "bytes spilled"], &rows)?;
        let spill = others.iter().filter(|kernel| kernel.2 > 0).count();
        let rest = others.len();
        Some(format!(
            "{table}\nOf {rest} kernels of Burn's, {spill} spill.\n"
        ))
    }

    fn training(&self) -> Option<String> {
        let mut rows = Vec::new();
        let names = self
            .benches
            .iter()
            .filter(|(_, bench)| bench["program"] == "burn-amp");
        for (name, bench) in names {
            let (step, way) = name.split_once('.').unwrap_or((name, ""));
            for row in bench["rows"].as_array().into_iter().flatten() {
                let step = format!("torch_{step}");
                let of = |dtype: &str| self.torch(&step, &[("precision", &json!(dtype))]);
                let precision = row["precision"].as_str().unwrap_or_default();
                let alike = (precision == "f32").then(|| of("tf32")).flatten();
                let torch = alike.or_else(|| of(precision));
                let rate = |row| number(row, "tokens_per_second").map(digits);
                let memory =
                    |row| number(row, "peak_bytes").map(|bytes| format!("{:.1}", bytes / 1e9));
                rows.push(vec![
                    format!("{}, {way}", text(&bench["way"])),
                    precision.to_owned(),
                    rate(row).unwrap_or_default(),
                    torch.and_then(rate).unwrap_or_default(),
                    number(row, "seconds")
                        .map(|seconds| format!("{:.1}", 1e3 * seconds))
                        .unwrap_or_default(),
                    number(row, "scaler_share")
                        .map(|share| format!("{:.1} %", 100.0 * share))
                        .unwrap_or_default(),
                    text(&row["launches"]),
                    memory(row).unwrap_or_default(),
                    torch.and_then(memory).unwrap_or_default(),
                ]);
            }
        }
        let header = [
            "steps",
            "precision",
            "tokens/s",
            "torch",
            "ms",
            "scaler",
            "launches",
            "peak, GB",
            "torch",
        ];
        let case = self
            .benches
            .values()
            .find(|bench| bench["program"] == "burn-amp")?;
        Some(format!(
            "{}; torch's f32 has tf32 products.\n\n{}",
            case["case"],
            table(&header, &rows)?
        ))
    }

    fn step(&self) -> Option<String> {
        let own = self.rows("step").map(|(way, row)| {
            let name = format!("{}, {way}", text(&row["way"]));
            let milliseconds = number(row, "milliseconds").unwrap_or(f64::NAN);
            let ratios = ["to_burns", "to_copy"].map(|ratio| text(&row[ratio]));
            let [to_burns, to_copy] = ratios;
            vec![
                text(&row["parameters"]),
                name,
                format!("{milliseconds:.3}"),
                to_burns,
                to_copy,
            ]
        });
        let torch = self.rows("torch_step").map(|(_, row)| {
            let name = format!("torch, {}", text(&row["way"]));
            let milliseconds = 1e3 * number(row, "seconds").unwrap_or(f64::NAN);
            let none = String::new;
            vec![
                text(&row["parameters"]),
                name,
                format!("{milliseconds:.3}"),
                none(),
                none(),
            ]
        });
        let rows: Vec<Vec<String>> = own.chain(torch).collect();
        table(&["parameters", "way", "ms", "/ Burn's", "/ copy"], &rows)
    }

    fn tests(&self) -> Option<String> {
        let steps = self.steps.iter();
        let row = |step: &Vec<String>| [0, 1, 6, 4, 5, 3].map(|at| step[at].clone()).to_vec();
        let rows: Vec<Vec<String>> = steps.map(row).collect();
        table(
            &["step", "by", "result", "passed", "failed", "seconds"],
            &rows,
        )
    }
}

/// Name and way, registers, bytes spilled.
type Kernel = (String, u64, u64);

/// What the names of this project's kernels begin with.
const OURS: [&str; 8] = [
    "advance",
    "decide",
    "factors",
    "finish_",
    "histogram",
    "measure",
    "update_many",
    "weigh",
];

/// What `ptxas -v` says of a module.
fn kernels(log: &str) -> Vec<Kernel> {
    let before = |line: &str, word: &str| -> Option<u64> {
        let words = line[..line.find(word)?].split_whitespace();
        words.last()?.parse().ok()
    };
    let (mut found, mut name, mut spilled) = (Vec::new(), String::new(), 0);
    for line in log.lines() {
        if let Some((_, after)) = line.split_once("Function properties for ") {
            name = after.trim().to_owned();
        }
        spilled = before(line, " bytes spill stores").unwrap_or(spilled);
        if let Some(registers) = before(line, " registers") {
            found.push((name.clone(), registers, spilled));
        }
    }
    found
}

fn table(header: &[&str], rows: &[Vec<String>]) -> Option<String> {
    if rows.is_empty() {
        return None;
    }
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header);
    text.push_str(&format!("|{}\n", "---|".repeat(header.len())));
    for row in rows {
        text.push_str(&line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    Some(text)
}

fn number(row: &Value, name: &str) -> Option<f64> {
    row[name].as_f64()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Three digits.
fn digits(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
