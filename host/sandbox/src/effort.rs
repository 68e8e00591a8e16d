//! How much work a component is to compile, found while it is validated and before any of the work is done.
//!
//! The compiler has no limits of its own, and what it takes can grow with the square of a function: 150 KB
//! can be minutes and gigabytes. What counts is how many values there are at how many places.

use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentInstance, ComponentOuterAliasKind, Encoding, FuncValidator,
    FuncValidatorAllocations, FunctionBody, Instance, Operator, OperatorsReader, Parser, Payload,
    ValidPayload, Validator, WasmFeatures, WasmModuleResources,
};

/// Of one function, which one core compiles. The largest of CPython has 9 million.
const FUNCTION: u64 = 20_000_000;

/// Of all functions of a component. CPython has 46 million.
const COMPONENT: u64 = 150_000_000;

/// What every function costs, however short it is.
const BEGIN: u64 = 1000;

/// What one target of a branch table costs, more than an operator.
const TARGET: u64 = 16;

/// Values that an operator may take and give before each costs as much as many.
const WIDE: u64 = 64;
const MANY: u64 = 64;

/// What a value costs that waits on the operand stack, at its highest.
const WAITING: u64 = 64;

/// Modules and components that are instantiated, counted as often as what holds them is.
const INSTANCES: u64 = 1000;

/// Why a file cannot be used.
pub(crate) enum Unfit {
    Invalid(BinaryReaderError),
    /// It is valid, and too much work.
    TooMuch(String),
}

impl From<BinaryReaderError> for Unfit {
    fn from(error: BinaryReaderError) -> Self {
        Self::Invalid(error)
    }
}

/// Validates a component and estimates the work.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Unfit> {
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    let mut allocations = FuncValidatorAllocations::default();
    let mut instances = Instances::default();
    let (mut functions, mut total) = (0_u64, 0_u64);
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload?;
        if let ValidPayload::Func(function, body) = validator.payload(&payload)? {
            let mut function = function.into_validator(allocations);
            let effort = effort(&mut function, &body)?;
            allocations = function.into_allocations();
            if effort > FUNCTION {
                return Err(Unfit::TooMuch(format!(
                    "function {functions} has too many values at too many places"
                )));
            }
            functions += 1;
            total = total.saturating_add(effort);
            if total > COMPONENT {
                let what = format!("its first {functions} functions have too many values at too many places");
                return Err(Unfit::TooMuch(what));
            }
        }
        if instances.see(&payload)? > INSTANCES {
            return Err(Unfit::TooMuch(format!(
                "it has more than {INSTANCES} instances of modules and components"
            )));
        }
    }
    Ok(())
}

/// Validates a function. Its effort is what every operator takes and gives, and for every place at which control
/// flow parts or meets the values that may be alive there, and the blocks around it.
fn effort<R: WasmModuleResources>(
    function: &mut FuncValidator<R>,
    body: &FunctionBody<'_>,
) -> Result<u64, BinaryReaderError> {
    let mut reader = body.get_binary_reader();
    function.read_locals(&mut reader)?;
    let mut operators = OperatorsReader::new(reader);
    let (mut moved, mut places, mut around, mut height) = (BEGIN, 0_u64, 0_u64, 0);
    while !operators.eof() {
        let (operator, offset) = operators.read_with_offset()?;
        let (taken, given) = operator.operator_arity(function).unwrap_or((0, 0));
        let values = u64::from(taken) + u64::from(given);
        moved += 1 + if values > WIDE { MANY * values } else { values };
        match &operator {
            Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::Else
            | Operator::End
            | Operator::Br { .. }
            | Operator::BrIf { .. } => {
                places += 1;
                around += u64::from(function.control_stack_height());
            }
            Operator::BrTable { targets } => {
                places += 1;
                moved += TARGET * u64::from(targets.len());
            }
            _ => {}
        }
        function.op(offset, &operator)?;
        height = height.max(function.operand_stack_height());
    }
    operators.finish()?;
    let alive = u64::from(function.len_locals()) + u64::from(height);
    moved += WAITING * u64::from(height);
    Ok(moved.saturating_add(around).saturating_add(alive.saturating_mul(places)))
}

/// How many instances the components of a file make, each counted as often as it is instantiated.
#[derive(Default)]
struct Instances {
    /// From the outermost component to the one that is read.
    open: Vec<Scope>,
    /// The most that any component makes, for one that cannot be told.
    most: u64,
}

#[derive(Default)]
struct Scope {
    is_component: bool,
    /// What it makes itself.
    own: u64,
    /// What each component that it knows makes.
    components: Vec<u64>,
}

impl Instances {
    /// What the component that is read, or was read to its end, makes so far.
    fn see(&mut self, payload: &Payload<'_>) -> Result<u64, BinaryReaderError> {
        match payload {
            Payload::Version { encoding, .. } => {
                self.open.push(Scope { is_component: *encoding == Encoding::Component, ..Scope::default() });
            }
            Payload::End(_) => return Ok(self.close()),
            Payload::InstanceSection(section) => {
                for instance in section.clone() {
                    self.make(u64::from(matches!(instance?, Instance::Instantiate { .. })));
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section.clone() {
                    if let ComponentInstance::Instantiate { component_index, .. } = instance? {
                        let components = self.open.last().map(|scope| &scope.components);
                        let known = components.and_then(|all| all.get(component_index as usize)).copied();
                        self.make(known.unwrap_or(self.most).saturating_add(1));
                    }
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section.clone() {
                    self.alias(&alias?);
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section.clone() {
                    if matches!(import?.ty, wasmparser::ComponentTypeRef::Component(_)) {
                        self.know(None);
                    }
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section.clone() {
                    let export = export?;
                    if export.kind == wasmparser::ComponentExternalKind::Component {
                        let known =
                            self.open.last().and_then(|scope| scope.components.get(export.index as usize));
                        self.know(known.copied());
                    }
                }
            }
            _ => {}
        }
        Ok(self.open.last().map_or(0, |scope| scope.own))
    }

    fn make(&mut self, instances: u64) {
        if let Some(scope) = self.open.last_mut() {
            scope.own = scope.own.saturating_add(instances);
        }
    }

    fn alias(&mut self, alias: &ComponentAlias<'_>) {
        match alias {
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
                let outer = self.open.iter().rev().nth(*count as usize);
                self.know(outer.and_then(|scope| scope.components.get(*index as usize)).copied());
            }
            ComponentAlias::InstanceExport { kind: wasmparser::ComponentExternalKind::Component, .. } => {
                self.know(None);
            }
            _ => {}
        }
    }

    /// Another component in the index space of the one that is read.
    fn know(&mut self, instances: Option<u64>) {
        let instances = instances.unwrap_or(self.most);
        if let Some(scope) = self.open.last_mut() {
            scope.components.push(instances);
        }
    }

    /// The end of a module or component.
    fn close(&mut self) -> u64 {
        let Some(scope) = self.open.pop() else { return 0 };
        if scope.is_component {
            self.most = self.most.max(scope.own);
            self.know(Some(scope.own));
        }
        scope.own
    }
}
