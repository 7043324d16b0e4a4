/// The path of the parameter being visited, as optimizers and records name it.
#[derive(Default)]
pub(crate) struct ModulePath {
    segments: Vec<String>,
}

impl ModulePath {
    pub(crate) fn enter(&mut self, name: &str) {
        self.segments.push(name.to_string());
    }

    pub(crate) fn exit(&mut self) {
        self.segments.pop();
    }

    pub(crate) fn join(&self) -> String {
        self.segments.join(".")
    }
}
